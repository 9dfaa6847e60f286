"""Patterns (`*`, `?`, `[...]`) and what `#`, `%` and `/` do with them in `${...}`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from bashread.values import ExpansionScope, NotBash, TooManyCommands


def matcher(shape: str) -> Callable[[str], bool]:
    """Whether a text matches the pattern `shape`."""
    try:
        match = re.compile(fnmatch.translate(shape)).match
    except re.error as error:
        raise NotBash(f"the pattern {shape} is not read: {error}") from None
    return lambda text: match(text) is not None


def trimmed(text: str, operator: str, shape: str, scope: ExpansionScope) -> str | None:
    """`#`, `##`, `%`, `%%`: the shortest or longest prefix or suffix that matches."""
    if scope.unknowns.of(shape):
        return None
    if len(text) > 4096:
        raise TooManyCommands("a pattern is matched against more than 4,096 characters")
    matches = matcher(shape)
    lengths = range(len(text) + 1) if len(operator) == 1 else range(len(text), -1, -1)
    for length in lengths:
        scope.spend(1 + length // 16)
        if operator[0] == "#" and matches(text[:length]):
            return text[length:]
        if operator[0] == "%" and matches(text[len(text) - length :]):
            return text[: len(text) - length]
    return text


def at_slash(argument: str) -> tuple[str, str, str]:
    place = 0
    while place < len(argument) and argument[place] != "/":
        place += 2 if argument[place] == "\\" else 1
    return argument[:place], argument[place : place + 1], argument[place + 1 :]
