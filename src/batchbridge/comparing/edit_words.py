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
    text: str, settings: Mapping[str, tuple[Any, Any]], lines_of: Mapping[str, int]
) -> tuple[str, tuple[KeyChange, ...]]:
    """A script with `settings` (key to its value before and from now on), and what changed in it.

    lines_of: the lines of those that stand in it, counted from 1. A new one follows one that changed. Raises
    `CannotEdit`.
    """
    lines = text.split("\n")  # only at line feeds, as lines are counted
    problems, changes = [], []
    anchor: tuple[int, int, str] | None = None
    for key, (old, value) in settings.items():
        if key not in lines_of:
            continue
        at = lines_of[key] - 1
        pattern = rf"(?<!\S)((?:\+{{0,2}}|--){re.escape(key)})(=|\s+)(\"?)([^\s\"]+)\3(?=\s|$)"
        found = list(re.finditer(pattern, lines[at])) if at < len(lines) else []
        if value is None:
            problems.append(f"{key} contradicts the rest: take it out of line {at + 1}")
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
        if key in lines_of:
            continue
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
    return "\n".join(lines), tuple(changes)


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


def edit_call(text: str, values: Mapping[str, Any], lines_of: Mapping[str, int]) -> str:
    """A Python program with keywords of a call set to literal `values`.

    lines_of: the lines of the keywords that stand in it, counted from 1. A new one comes last in the call of the
    others. Raises `CannotEdit`, also for what is no Python.
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
    for key, value in values.items():
        named = [one for call in of_run for one in call.keywords if one.arg == key and _at(one, lines_of)]
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
    data = text.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def _at(keyword: ast.keyword, lines_of: Mapping[str, int]) -> bool:
    """Whether a keyword is the setting that stands in a line."""
    line = lines_of.get(keyword.arg or "")
    return line is not None and line in (keyword.lineno, keyword.value.lineno)


def _plain(value: object) -> bool:
    return isinstance(value, (int, float, str)) and re.fullmatch(_VALUE, str(value)) is not None
