"""TOML as data: Python's own parser for the values, and the line of each key from the tokens alone.

The tokens come first and hold the bounds, so that the parser never meets a file that nests without end. Elements of
arrays of tables are counted from 0, as in `source[1].name`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from batchbridge.reading.yaml_json import (
    MAX_DEPTH,
    MAX_NODES,
    Document,
    RefusedFile,
    problem,
    refuse,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TOKENS = re.compile(
    r'"""(?:[^\\]|\\.)*?"""'
    r"|'''.*?'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*"
    r"|[\n\[\]{}=,.]"
    r"|[^\s\"'\#\[\]{}=,.]+"
    r"|[\"']",
    re.DOTALL,
)


def parse_toml(text: str, file: str) -> Document:
    """The document of a TOML file; what is wrong with it is a problem with its line."""
    document = Document()
    try:
        for key, line in _keys(text, file):
            document.lines.setdefault(key, line)
        document.value = tomllib.loads(text) or None
    except RefusedFile as refused:
        document.problems.append(refused.finding)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = int(found[1]) if found else text.rstrip("\n").count("\n") + 1  # "at end of document"
        document.problems.append(problem("BB004", f"this is not TOML: {what}", file, line))
    except (RecursionError, ValueError, OverflowError) as error:
        document.problems.append(problem("BB004", f"this is not TOML: {error}", file))
    return document


def is_toml(text: str) -> bool:
    """Whether it is TOML that says something."""
    try:
        return bool(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _keys(text: str, file: str) -> Iterator[tuple[str, int]]:
    """(dotted key, line) of every key and table; also holds the bounds. What is not TOML gives any keys."""
    counts: dict[str, int] = {}  # arrays of tables, by path, with their elements so far
    stack: list[tuple[str, str, int]] = []  # of each open bracket: what stands before it, its kind, items so far
    key: list[str] = []
    table, here, header, in_value, line, at, tokens = "", "", 0, False, 1, 0, 0
    for token in _TOKENS.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        word = token.group()
        if word.startswith("#"):
            continue
        tokens += 1
        if tokens > 4 * MAX_NODES:
            refuse("BB007", f"more than {MAX_NODES:,} values", file, line)
        if len(key) + len(stack) + table.count(".") > MAX_DEPTH:
            refuse("BB007", f"nested deeper than {MAX_DEPTH} levels", file, line)
        if word == "\n":
            if not stack:
                key, in_value, header = [], False, 0
        elif in_value:
            if word in "[{":
                stack.append((here, word, 0))
                key, in_value = [], word == "["
            elif word in "]}" and stack:
                stack.pop()
                in_value = True
            elif word == "," and stack:
                before, kind, items = stack[-1]
                stack[-1] = (before, kind, items + 1)
                key, in_value = [], kind == "["
            if stack and stack[-1][1] == "[":
                here = f"{stack[-1][0]}[{stack[-1][2]}]"
        elif word == "[" and not stack and not key and header < 2:
            header += 1
        elif word == "]" and header:
            if not key:
                continue
            table = _placed("", key, counts)
            if header == 2:
                bare = re.sub(r"\[\d+\]$", "", table)
                counts[bare] = counts.get(bare, 0) + 1
                table = f"{bare}[{counts[bare] - 1}]"
                yield bare, line
            yield table, line
            key = []
        elif word == "=":
            here = _placed(stack[-1][0] if stack else table, key, counts)
            yield here, line
            key, in_value = [], True
        elif word == "}" and stack:
            stack.pop()
            key, in_value = [], True
        elif word not in ".,[]{}":
            key.append(word[1:-1] if len(word) > 1 and word[0] in "\"'" else word)


def _placed(parent: str, key: list[str], counts: dict[str, int]) -> str:
    """The path of `key` below `parent`, in the last element of every array of tables on the way."""
    path = parent
    for part in key:
        path = f"{path}.{part}" if path else part
        if path in counts:
            path = f"{path}[{counts[path] - 1}]"
    return path
