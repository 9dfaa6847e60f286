"""Hydra's overrides on a command line, read without Hydra: `key=value`, `+key=`, `++key=`, `~key`.

Hydra itself takes two seconds to import and evaluates functions; a login node has neither it nor the time. This reads
the forms that launch scripts use (scalars, quoted text, lists, mappings) and refuses the rest by name: sweeps,
functions, casts, groups with a package. A test holds it against Hydra's own parser.
Source: hydra-core 1.3.2, grammar OverrideParser.g4; docs "Basic Override syntax".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from batchbridge.errors import BatchBridgeError

Operation = Literal["set", "add", "force", "delete"]
_OPERATORS: tuple[tuple[str, Operation], ...] = (("++", "force"), ("+", "add"), ("~", "delete"), ("", "set"))

MAX_DEPTH = 32
"""Deepest nesting of lists and mappings in one value."""


class NotRead(BatchBridgeError, ValueError):
    """A word that is not an override, or one that is refused: why."""


class NoOverride(NotRead):
    """One that Hydra's own grammar refuses as well."""


class Override(NamedTuple):
    """One override: what to do, the dotted key, and the value (None for a deletion without value)."""

    operation: Operation
    key: str
    value: Any
    word: str


Item = TypeVar("Item")
_KEY = re.compile(r"[A-Za-z_][\w\-]*(?:[./][\w\-]+)*")
_FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\(")
_INTEGER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(
    r"[+-]?(?:(?:0|[1-9](?:_?[0-9])*)(?:\.(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)(?:[eE][+-]?[0-9](?:_?[0-9])*)?"
    r"|[+-]?(?:inf|nan)",
    re.IGNORECASE,
)
_UNQUOTED = frozenset("/-\\+.$%*@?|:_ \t")
"""Characters, besides letters and digits, of text without quotes."""


def parse_override(word: str) -> Override:
    """The override that `word` is. Raises `NotRead`."""
    operator, operation = next(pair for pair in _OPERATORS if word.startswith(pair[0]))
    key, equals, text = word[len(operator) :].partition("=")
    if not equals and operation != "delete":
        raise NotRead(f"{word!r} is not an override: it has no =")
    if "@" in key:
        raise NotRead(f"{word!r}: groups with a package (@) are not followed")
    if not _KEY.fullmatch(key):
        raise NotRead(f"{word!r}: {key!r} is not a key")
    value = parse_value(text) if equals else None
    return Override(operation, key, value, word)


def parse_value(text: str) -> Any:
    """The value after `=`: null, flags, numbers, text, lists and mappings. Raises `NotRead`."""
    parser = _Parser(text)
    value = parser.element(0, top=True)
    parser.end()
    return value


def primitive(text: str) -> Any:
    """The value of text without quotes: null, true, false, an integer, a float, or itself."""
    lowered = text.lower()
    if lowered in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[lowered]
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= 40 else text
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


class _Parser:
    """A cursor over one value."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def blanks(self) -> None:
        while self.peek() in (" ", "\t"):
            self.at += 1

    def end(self) -> None:
        value_ends = self.at
        self.blanks()
        if value_ends < self.at == len(self.text):
            raise NoOverride(f"{self.text!r:.60}: blanks after a quote, a list or a mapping are not part of it")
        if self.peek() == ",":
            raise NotRead(f"{self.text!r:.60}: a sweep over several values needs --multirun, which is no one run")
        if self.peek():
            raise NoOverride(
                f"{self.text!r:.60}: {self.peek()!r} is not expected at column {self.at + 1}; quote the text"
            )

    def element(self, depth: int, *, top: bool = False) -> Any:
        self.blanks()
        if depth > MAX_DEPTH:
            raise NotRead(f"nested deeper than {MAX_DEPTH} levels")
        first = self.peek()
        if first == "[":
            return list(self.items("]", lambda: self.element(depth + 1)))
        if first == "{":
            return dict(self.items("}", lambda: self.pair(depth + 1)))
        if first in ("'", '"'):
            return self.quoted(first)
        if match := _FUNCTION.match(self.text, self.at):
            raise NotRead(f"{self.text!r:.60}: the function {match[1]}() is not evaluated")
        if not first and top:
            return ""
        return primitive(self.unquoted())

    def items(self, close: str, item: Callable[[], Item]) -> Iterator[Item]:
        """The items between brackets, with commas between."""
        self.at += 1
        self.blanks()
        mark = self.peek()
        if mark == close:
            self.at += 1
        while mark != close:
            yield item()
            self.blanks()
            mark = self.peek()
            if mark not in (",", close):
                raise NoOverride(f"{self.text!r:.60}: {', or ' + close if mark else close} is missing")
            self.at += 1

    def pair(self, depth: int) -> tuple[str, Any]:
        self.blanks()
        quote = self.peek()
        key = self.quoted(quote) if quote in ("'", '"') else self.unquoted(stop=":")
        self.blanks()
        if self.peek() != ":":
            raise NoOverride(f"{self.text!r:.60}: a colon is missing after the key {key!r:.30}")
        self.at += 1
        return key, self.element(depth)

    def quoted(self, quote: str) -> str:
        start = self.at
        self.at += 1
        parts: list[str] = []
        while self.peek() and self.peek() != quote:
            run = len(self.text) - self.at - len(self.text[self.at :].lstrip("\\"))
            if not run:
                parts.append(self.peek())
                self.at += 1
                continue
            # Backslashes count by pairs before a quote only; an odd one makes the quote a character.
            quoted = self.text[self.at + run : self.at + run + 1] == quote
            parts.append("\\" * (run // 2 if quoted else run))
            self.at += run
            if quoted and run % 2:
                parts.append(quote)
                self.at += 1
        if not self.peek():
            raise NoOverride(f"{self.text[start:]!r:.60}: the quote is not closed")
        self.at += 1
        return "".join(parts)

    def unquoted(self, stop: str = "") -> str:
        parts: list[str] = []
        shape: list[str] = []
        """The text with a letter in place of each character that is escaped."""
        while mark := self.peek():
            if mark == "\\" and self.text[self.at + 1 : self.at + 2] in tuple("\\()[]{}:=, \t"):
                parts.append(self.text[self.at + 1])
                shape.append("x")
                self.at += 2
                continue
            if mark == "$" and self.text.startswith("${", self.at):
                mark = self.interpolation()
            elif mark != stop and ((mark.isascii() and mark.isalnum()) or mark in _UNQUOTED):
                self.at += 1
            else:
                break
            parts.append(mark)
            shape.append(mark)
        seen = "".join(shape)
        trimmed = seen.rstrip(" \t")
        # Blanks after a colon belong to it.
        end = len(seen) if trimmed.endswith(":") else len(trimmed)
        text = "".join(parts)[len(seen) - len(seen.lstrip(" \t")) : end]
        if not text:
            what = repr(self.peek()) if self.peek() else "the end"
            raise NoOverride(f"{self.text!r:.60}: a value is expected before {what}")
        return text

    def interpolation(self) -> str:
        """`${...}`, whole; what it refers to is decided later."""
        start, end = self.at, closing(self.text, self.at)
        if end is None:
            raise NoOverride(f"{self.text!r:.60}: ${{ is not closed")
        self.at = end
        return self.text[start:end]


def closing(text: str, start: int) -> int | None:
    """The place behind the brace that closes the first one from `start` on."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if text[at] == "}" and depth == 0:
            return at + 1
    return None
