"""Kinds of native values: what a setting takes, in words and as a conversion.

    natural.convert(8)      8
    natural.convert(True)   raises WrongValue("a whole number from 1")

A kind converts what a configuration holds (YAML's values, an argument's) to what the framework would hold. Nothing is
guessed: text is not a number, 2.0 is not a whole number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from batchbridge.errors import BatchBridgeError

LARGEST = 1 << 62
"""The largest integer: those beyond are not sizes, seeds or counts."""


class WrongValue(BatchBridgeError, ValueError):
    """The value is not of its key's kind: what was expected, and what the framework itself does with it."""

    def __init__(self, expected: str, native: str = "") -> None:
        super().__init__(expected)
        self.expected, self.native = expected, native


class Kind(NamedTuple):
    """The kind of values that a setting takes. name: for tables. expected: for messages ("a whole number from 1").
    convert: the value as the framework would hold it; raises `WrongValue`. schema: the same for an editor, as JSON
    Schema (draft-07); empty: an editor takes any value."""

    name: str
    expected: str
    convert: Callable[[Any], Any]
    schema: Mapping[str, Any] = {}

    def takes(self, value: Any) -> bool:
        """Whether `value` is one of this kind."""
        try:
            self.convert(value)
        except WrongValue:
            return False
        return True


def whole(least: int | None = None, most: int = LARGEST - 1) -> Kind:
    """Whole numbers from `least` to `most`, both included."""
    expected = "a whole number" + ("" if least is None else f" from {least}")
    expected += "" if most == LARGEST - 1 else f" to {most}"
    low = -most if least is None else least

    def convert(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= most:
            return value
        raise WrongValue(expected)

    bounds = {"minimum": least} if least is not None else {}
    return Kind("whole number", expected, convert, {"type": "integer", **bounds, **_at_most(most, LARGEST - 1)})


def _at_most(most: float, endless: float) -> dict[str, float]:
    return {} if most == endless else {"maximum": most}


def real(least: float = -math.inf, most: float = math.inf) -> Kind:
    """Finite numbers from `least` to `most`, both included."""
    bounds = [f"from {least:g}" if least > -math.inf else "", f"to {most:g}" if most < math.inf else ""]
    expected = " ".join(["a number", *filter(None, bounds)])

    def convert(value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and abs(value) < LARGEST and least <= value <= most:
            return float(value)
        raise WrongValue(expected)

    low = {"minimum": least} if least > -math.inf else {}
    return Kind("number", expected, convert, {"type": "number", **low, **_at_most(most, math.inf)})


def one_of(*words: str) -> Kind:
    """The kind of a value that is one of these words."""
    expected = f"one of {', '.join(words)}"

    def convert(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise WrongValue(expected)

    return Kind("word", expected, convert, {"enum": list(words)})


def optional(kind: Kind) -> Kind:
    """A kind, or None."""
    expected = f"{kind.expected}, or null"

    def convert(value: Any) -> Any:
        if value is None:
            return None
        try:
            return kind.convert(value)
        except WrongValue:
            raise WrongValue(expected) from None

    return Kind(f"{kind.name}?", expected, convert, or_null_schema(kind.schema))


def or_null(kind: Kind) -> Kind:
    """A kind, or None; what is neither is refused in the kind's own words."""
    schema = or_null_schema(kind.schema)
    return Kind(f"{kind.name}?", kind.expected, lambda value: None if value is None else kind.convert(value), schema)


def or_null_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON Schema of a kind that may be null, too."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": list(dict.fromkeys([*types, "null"]))}
    return schema


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongValue("true or false")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise WrongValue("text")


anything = Kind("anything", "any value", lambda value: value)
"""The kind of any value that a configuration holds: for settings that decide nothing here."""
natural = whole(1)
"""Whole numbers from 1: sizes and counts."""
count = whole(0)
"""Whole numbers from 0."""
flag = Kind("flag", "true or false", _flag, {"type": "boolean"})
text = Kind("text", "text", _text, {"type": "string"})

_NAMED = {
    "anything": anything,
    "natural": natural,
    "count": count,
    "whole": whole(),
    "number": real(),
    "positive": real(0),
    "share": real(0, 1),
    "seed": whole(0, 2**32 - 1),
    "flag": flag,
    "text": text,
}


def named(name: str) -> Kind:
    """The kind of a short name, for tables that are data. Raises `KeyError`.

    `natural`, `count`, `whole`, `number`, `positive` (from 0), `share` (0 to 1), `seed` (numpy's), `flag`, `text`,
    `anything`, or words, `a|b`; with `?` behind it, null too.
    """
    if name.endswith("?"):
        return optional(named(name[:-1]))
    return one_of(*name.split("|")) if "|" in name else _NAMED[name]
