"""Brace expansion: `{a,b}` and `{1..3}`. It comes before every other expansion and works on raw text."""

from __future__ import annotations

import re

from bashread.quotes import skipped
from bashread.values import ExpansionScope

_RANGE = r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d{1,9}))?"


def braces(raw: str, scope: ExpansionScope) -> list[str]:
    """The raw words that brace expansion makes of `raw`; it comes before everything else and respects quotes."""
    scope.spend(len(raw) + 1)
    start = 0
    while (found := _brace(raw, start, scope)) is not None:
        place, end, parts = found
        inner = raw[place + 1 : end]
        made = parts if len(parts) > 1 else _range(inner, scope)
        if made is not None:
            tails = braces(raw[end + 1 :], scope)
            middles = [text for part in made for text in (braces(part, scope) if len(parts) > 1 else [part])]
            scope.spend(len(middles) * len(tails) * (len(raw) + 1))
            return [raw[:place] + middle + tail for middle in middles for tail in tails]
        start = place + 1
    return [raw]


def _range(inner: str, scope: ExpansionScope) -> list[str] | None:
    match = re.fullmatch(_RANGE, inner)
    if match is None:
        return None
    if match[4]:
        first, last = ord(match[4]), ord(match[5])
    else:
        first, last = int(match[1]), int(match[2])
    step = abs(int(match[3] or match[6] or 1)) or 1
    scope.spend(abs(last - first) // step + 1)
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if match[4]:
        return [chr(number) for number in numbers]
    ends = (match[1], match[2])
    width = max(len(end) for end in ends) if any(re.match(r"-?0\d", end) for end in ends) else 0
    return [f"{number:0{width}d}" for number in numbers]


def _brace(raw: str, start: int, scope: ExpansionScope) -> tuple[int, int, list[str]] | None:
    """The first unquoted `{...}` from `start`: where it opens and closes, and its parts between commas."""
    place = start if "{" in raw else len(raw)
    while place < len(raw):
        char = raw[place]
        if char == "{" and (closed := _brace_parts(raw, place, scope)) is not None:
            return place, closed[0], closed[1]
        place = skipped(raw, place)
    return None


def _brace_parts(raw: str, opened: int, scope: ExpansionScope) -> tuple[int, list[str]] | None:
    scope.spend(len(raw) - opened)
    depth, place, cut = 0, opened, opened + 1
    parts: list[str] = []
    while place < len(raw):
        char = raw[place]
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if not depth:
                return place, [*parts, raw[cut:place]]
        elif char == "," and depth == 1:
            parts.append(raw[cut:place])
            cut = place + 1
        place = skipped(raw, place)
    return None
