"""Quotes and brackets in text that is not expanded yet: where they end, and what `$'...'` holds."""

from __future__ import annotations

import re

from bashread.values import NotBash


def skipped(raw: str, place: int) -> int:
    """The place after the character, the quoted text or the expansion at `place`."""
    char, following = raw[place], raw[place + 1 : place + 2]
    if char == "\\":
        return place + 2
    if char == "'":
        return find(raw, "'", place + 1) + 1
    if char in '"`':
        return closing(raw, place + 1, char) + 1
    if char == "$" and following in ("{", "("):
        return matching(raw, place + 1) + 1
    return place + 1


def find(raw: str, char: str, start: int) -> int:
    end = raw.find(char, start)
    if end < 0:
        raise NotBash(f"a {char} is not closed")
    return end


def closing(raw: str, start: int, quote: str) -> int:
    """The place where the quote that opened before `start` closes."""
    place = start
    while place < len(raw):
        char = raw[place]
        if char == "\\":
            place += 2
            continue
        if char == quote:
            return place
        if quote == '"' and char == "$" and raw[place + 1 : place + 2] in ("(", "{"):
            place = matching(raw, place + 1)
        elif quote == '"' and char == "`":
            place = closing(raw, place + 1, "`")
        place += 1
    raise NotBash(f"a {quote} is not closed")


_PAIRS = {"(": ")", "{": "}", "[": "]"}


def matching(raw: str, start: int) -> int:
    """The place where the bracket at `start` closes; quotes and nested brackets of its kind are skipped."""
    opened, depth, place = raw[start], 0, start
    while place < len(raw):
        char = raw[place]
        if char == "\\":
            place += 1
        elif char == "'" and opened != "{":
            place = find(raw, "'", place + 1)
        elif char == '"' or char == "`":
            place = closing(raw, place + 1, char)
        elif char == "$" and raw[place + 1 : place + 2] in ("{", "(") and raw[place + 1] != opened:
            place = matching(raw, place + 1)
        elif char == opened:
            depth += 1
        elif char == _PAIRS[opened]:
            depth -= 1
            if not depth:
                return place
        place += 1
    raise NotBash(f"a {opened} is not closed")


_ESCAPES = dict(zip("nt\\'\"abreEvf?", "\n\t\\'\"\a\b\r\x1b\x1b\v\f?", strict=True))


def ansi_c(raw: str) -> str:
    """The text of `$'...'`."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code in _ESCAPES:
            return _ESCAPES[code]
        try:
            number = int(code[1:], 16) if code[0] in "xuU" else int(code, 8)
            if code[0] not in "uU" and number > 0x7F:
                return chr(0xDC00 + number % 256)  # a byte of UTF-8, see PEP 383
            return chr(number) if 0 < number < 0xD800 else ""
        except ValueError:
            return match[0]

    text = re.sub(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", one, raw, flags=re.DOTALL)
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
