"""One native value at a time, as HfArgumentParser makes it of the words of a command line or of a given value."""

from __future__ import annotations

import math
from typing import Any

from batchbridge.kit.parser_kinds import FALSE, TRUE
from batchbridge_open_instruct.settings import Setting

LARGEST = 10**15
"""Largest integer that is taken for a size."""


class WrongValue(ValueError):
    """The value is not of its key's kind: what was expected."""


def convert(row: Setting, value: Any) -> Any:
    """`value` as the script would hold it. Raises `WrongValue`."""
    kind, optional = row.kind.removesuffix("?"), row.kind.endswith("?")
    if value is None or (optional and value == "None"):
        if optional:
            return None
        raise WrongValue(_EXPECTED[kind])
    if kind == "ints":
        return _integers(row, value)
    if kind == "int":
        return _integer(row, value)
    if kind == "float":
        return _number(value)
    if kind == "bool":
        return _flag(value)
    return _text(value)


_EXPECTED = {"int": "an integer", "float": "a number", "bool": "true or false", "text": "text", "ints": "integers"}


def _integer(row: Setting, value: Any) -> int:
    if isinstance(value, str):
        try:
            value = int(value) if len(value) < 20 else None
        except ValueError:
            value = None
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongValue("an integer")
    if row.minimum is not None and value < row.minimum:
        raise WrongValue(f"an integer of at least {row.minimum}")
    if abs(value) > LARGEST:
        raise WrongValue(f"an integer of at most {LARGEST:,}")
    return value


def _integers(row: Setting, value: Any) -> tuple[int, ...]:
    parts = value.split() if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    if not parts or len(parts) > 100_000:
        raise WrongValue("one integer per node")
    return tuple(_integer(row, part) for part in parts)


def _number(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise WrongValue("a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WrongValue("a finite number")
    return number


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in TRUE + FALSE:
        return value.lower() in TRUE
    raise WrongValue("true or false")


def _text(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        try:
            return str(value)
        except ValueError:  # thousands of digits
            raise WrongValue("text") from None
    if not isinstance(value, str):
        raise WrongValue("text")
    return value
