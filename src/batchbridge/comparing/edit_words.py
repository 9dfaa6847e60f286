"""Changes of single settings in a launch script and in a Python program: every other character stays as it is.

A text is only changed where it says a setting as one plain word, or as one variable whose value, or default, is a plain
word that stands once. Whoever changes it reads the result back.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from batchbridge.comparing.edit_file import KeyChange
from batchbridge.errors import CannotEdit

_VALUE = r"[\w.+:/-]+"
"""A literal value in a script, without quotes or variables."""
_DEFAULT = rf"\$\{{[A-Za-z_]\w*:?-({_VALUE})\}}"
"""`${NAME:-VALUE}`: what nothing else decides has this value."""


def edit_script(
    text: str,
    settings: Mapping[str, tuple[Any, Any]],
    lines_of: Mapping[str, int],
    names: Mapping[str, str] | None = None,
) -> tuple[str, tuple[KeyChange, ...]]:
    """A script with `settings` (key to its value before and from now on; None: it goes), and what changed in it.

    lines_of: the lines of those that stand in it, counted from 1. names: settings to their names from now on. A new one
    follows one that changed, or the last that stands there. Raises `CannotEdit`.
    """
    lines = text.split("\n")  # only at line feeds, as lines are counted
    problems, changes = [], []
    anchor: tuple[int, int, str] | None = None
    for key, new in (names or {}).items():
        at = lines_of.get(key, 0) - 1
        found = list(re.finditer(_name(key), lines[at])) if 0 <= at < len(lines) else []
        if len(found) != 1:
            problems.append(f"line {at + 1} does not say {key} as one plain word: call it {new} there")
            continue
        lines[at] = lines[at][: found[0].start(1)] + new + lines[at][found[0].end(1) :]
    gone: list[int] = []
    for key, (old, value) in settings.items():
        if key not in lines_of:
            continue
        at = lines_of[key] - 1
        found = list(re.finditer(_setting(key), lines[at])) if at < len(lines) else []
        if value is None:
            if len(found) != 1 or found[0][4].startswith(("\\", "-")):
                problems.append(f"line {at + 1} does not say {key} as plain words: take it out there")
                continue
            lines[at] = lines[at][: found[0].start()].rstrip(" ") + lines[at][found[0].end() :]
            gone += [at] if lines[at].strip() in ("", "\\") else []
            changes.append(KeyChange(key, old, None, "removed"))
            continue
        place = _word_of(lines, at, found[0][4], found[0].start(4), str(old)) if len(found) == 1 else None
        if place is None or not _plain(value):
            problems.append(f"line {at + 1} does not say {key} as one plain word: set it to {value} there")
            continue
        (match,), (line, start, end) = found, place
        grown = len(str(value)) - (end - start) if line == at else 0
        lines[line] = f"{lines[line][:start]}{value}{lines[line][end:]}"
        anchor = anchor or (at, match.end() + grown, "--" if match[1].startswith("--") else "")
        changes.append(KeyChange(key, old, value, "set"))
    for key, (old, value) in settings.items():
        if key in lines_of or value is None:
            continue
        anchor = anchor or _last_setting(lines, lines_of)
        if anchor is None or not _plain(value):
            problems.append(f"{key} does not stand in the script: add it, with {value}")
            continue
        at, end, dashes = anchor
        word = f" --{key} {value}" if dashes else f" {key}={value}"
        lines[at] = lines[at][:end] + word + lines[at][end:]
        anchor = (at, end + len(word), dashes)
        changes.append(KeyChange(key, old, value, "added"))
    if problems:
        raise CannotEdit(*problems)
    for at in sorted(gone, reverse=True):
        if not lines.pop(at).strip() and at and lines[at - 1].endswith("\\"):  # the command ends a line earlier
            lines[at - 1] = lines[at - 1][:-1].rstrip(" ")
    return "\n".join(lines), tuple(changes)


def _name(key: str) -> str:
    """The pattern of a setting's name in a line: its first group is the name, without dashes."""
    return rf"(?<!\S)(?:\+{{0,2}}|--)({re.escape(key)})(?=[=\s]|$)"


def _setting(key: str) -> str:
    """The pattern of a setting with its value: the name with dashes, what is between, a quote, the value."""
    return rf"(?<!\S)((?:\+{{0,2}}|--){re.escape(key)})(=|\s+)(\"?)([^\s\"]+)\3(?=\s|$)"


def _last_setting(lines: list[str], lines_of: Mapping[str, int]) -> tuple[int, int, str] | None:
    """The place behind the last setting that stands in a script with its value: line, column, and its dashes."""
    last: tuple[int, int, str] | None = None
    for key, number in lines_of.items():
        found = list(re.finditer(_setting(key), lines[number - 1])) if number <= len(lines) else []
        if len(found) == 1 and not found[0][4].startswith(("\\", "-")):
            place = (number - 1, found[0].end(), "--" if found[0][1].startswith("--") else "")
            last = place if last is None or last < place else last
    return last


def variable_of(text: str, key: str, line: int, value: object) -> tuple[str, int] | None:
    """The variable of a script whose default says the setting that stands in a line, and the default's line, both lines
    from 1: whoever starts the script may give it another value. None where no such default says it."""
    lines = text.split("\n")
    found = list(re.finditer(_setting(key), lines[line - 1])) if line <= len(lines) else []
    place = _word_of(lines, line - 1, found[0][4], found[0].start(4), str(value)) if len(found) == 1 else None
    named = None if place is None else re.search(r"\$\{([A-Za-z_]\w*):?-$", lines[place[0]][: place[1]])
    return None if place is None or named is None else (named[1], place[0] + 1)


def _word_of(lines: list[str], at: int, word: str, start: int, old: str) -> tuple[int, int, int] | None:
    """The place (line, start, end) of the plain word that says a setting as `word`, in the line `at` from `start` on:
    the word itself, the default of a variable that nothing else sets, or the one assignment to the variable."""
    if re.fullmatch(_VALUE, word):
        return at, start, start + len(word)
    if default := re.fullmatch(_DEFAULT, word):
        return (at, start + default.start(1), start + default.end(1)) if default[1] == old else None
    named = re.fullmatch(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", word)
    if named is None:
        return None
    sets = re.compile(rf"(?<!\S)(?:export\s+)?{named[1] or named[2]}=(\"?)(?:({_VALUE})|{_DEFAULT})\1\s*(?:;|#|$)")
    found = [(line, match) for line, text in enumerate(lines) for match in [sets.search(text)] if match]
    if len(found) != 1 or (found[0][1][2] or found[0][1][3]) != old:
        return None
    line, match = found[0]
    group = 2 if match[2] else 3
    return line, match.start(group), match.end(group)


def edit_call(
    text: str, values: Mapping[str, Any], lines_of: Mapping[str, int], names: Mapping[str, str] | None = None
) -> str:
    """A Python program with keywords of a call set to literal `values`; None: the keyword goes.

    lines_of: the lines of the keywords that stand in it, counted from 1. names: keywords to their names from now on. A
    new one comes last in the call of the others. Raises `CannotEdit`, also for what is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CannotEdit(f"the program is not read: {error}") from None
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_run = [call for call in calls if any(_at(one, lines_of) for one in call.keywords)]
    edits: list[tuple[int, int, str]] = []
    data = text.encode()
    for key, new in (names or {}).items():
        named = [one for call in of_run for one in call.keywords if one.arg == key and _at(one, lines_of)]
        if len(named) != 1:
            raise CannotEdit(f"line {lines_of.get(key)} does not say {key} as one keyword: call it {new} there")
        start = starts[named[0].lineno - 1] + named[0].col_offset
        edits.append((start, start + len(key.encode()), new))
    for key, value in values.items():
        named = [one for call in of_run for one in call.keywords if one.arg == key and _at(one, lines_of)]
        if value is None:
            if len(named) != 1:
                raise CannotEdit(f"{key} does not stand in the program as one keyword: take it out")
            node = named[0].value
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or node.col_offset)
            edits.append((*_with_comma(data, starts[named[0].lineno - 1] + named[0].col_offset, end), ""))
            continue
        if key in lines_of and (len(named) != 1 or not isinstance(named[0].value, ast.Constant)):
            raise CannotEdit(f"line {lines_of[key]} does not say {key} as one plain value: set it to {value!r} there")
        if named:
            node = named[0].value
            last, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
            edits.append((starts[node.lineno - 1] + node.col_offset, starts[last - 1] + column, repr(value)))
        elif len(of_run) != 1:
            raise CannotEdit(f"{key} does not stand in the program: add it, with {value!r}")
        else:
            behind = of_run[0].keywords[-1].value
            last, column = behind.end_lineno or behind.lineno, behind.end_col_offset or behind.col_offset
            edits.append((starts[last - 1] + column, starts[last - 1] + column, f", {key}={value!r}"))
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def _with_comma(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The part of a program to take out with an argument: the comma behind it, and its line where nothing else is in
    it; of the last argument the comma before it."""
    behind = re.compile(rb"[ \t]*,[ \t]*").match(data, end)
    if behind is None:
        before = re.search(rb",\s*$", data[:start])
        return (start if before is None else before.start()), end
    line = data.rfind(b"\n", 0, start) + 1
    alone = not data[line:start].strip() and data[behind.end() : behind.end() + 1] == b"\n"
    return (line, behind.end() + 1) if alone else (start, behind.end())


def _at(keyword: ast.keyword, lines_of: Mapping[str, int]) -> bool:
    """Whether a keyword is the setting that stands in a line."""
    line = lines_of.get(keyword.arg or "")
    return line is not None and line in (keyword.lineno, keyword.value.lineno)


def _plain(value: object) -> bool:
    return isinstance(value, (int, float, str)) and re.fullmatch(_VALUE, str(value)) is not None
