"""One native value at a time: is it of its key's kind?

Hydra and OmegaConf hand on what they read; verl's dataclasses check little of it, and most wrong values fail far from
their cause. `1e-6` is a float to OmegaConf and text to PyYAML, so text that OmegaConf's loader takes for a number is a
number here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from batchbridge.errors import BatchBridgeError

LARGEST = 1 << 62
"""Integers beyond this are no sizes, seeds or counts."""


class WrongValue(BatchBridgeError, ValueError):
    """The value is not of its key's kind: what was expected, and what the framework itself does with it."""

    def __init__(self, expected: str, native: str = "") -> None:
        super().__init__(expected)
        self.expected, self.native = expected, native


def convert(kind: str, value: Any) -> Any:
    """`value` as the framework would hold it. `kind` as in `settings.Setting`. Raises `WrongValue`."""
    if value is None:
        if kind.endswith("?") or kind == "any":
            return None
        raise WrongValue(f"{_NAMES[kind]}, not null")
    return _CONVERTERS[kind.rstrip("?")](value)


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        return value
    raise WrongValue("an integer")


def _float(value: Any) -> float:
    if isinstance(value, str):
        value = number(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST:
        return float(value) if math.isfinite(value) else _refuse("a finite number")
    raise WrongValue("a finite number")


def number(text: str) -> float | None:
    """See `batchbridge.kit.omegaconf.number`, whose module reads whole files and is imported for text alone."""
    from batchbridge.kit import omegaconf

    return omegaconf.number(text)


def _refuse(expected: str) -> Any:
    raise WrongValue(expected)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongValue("true or false")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise WrongValue("text")


def _sequence(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float, str)) for item in value):
        return [_float(item) if isinstance(item, str) and number(item) is not None else item for item in value]
    raise WrongValue("a list")


def _any(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool, list)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise WrongValue("a plain value")


_CONVERTERS = {"int": _integer, "float": _float, "bool": _flag, "str": _text, "list": _sequence, "any": _any}
_NAMES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
