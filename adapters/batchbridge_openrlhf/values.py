"""Values as OpenRLHF's parser holds them: argparse converts text with the option's type, and nothing else is checked.

What argparse refuses is refused here, and so is what a mapping could hold but no command line: flags that are not true
or false, numbers that are not finite, integers beyond 32 bits (no count of a real run comes near).
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.kit import LARGEST, Phase
from batchbridge_openrlhf.settings import Option

_LONGEST = 64
"""Characters and items beyond which a list of numbers is not looked at."""


class WrongOptionValue(ValueError):
    """The value is not of its option's kind: what was expected, what OpenRLHF itself would say, and when; `held`: what
    its parser takes it for, unless it refuses it."""

    def __init__(self, expected: str, native: str, phase: Phase = "config", held: Any = None) -> None:
        super().__init__(expected)
        self.expected, self.native, self.phase, self.held = expected, native, phase, held


def convert(option: Option, value: Any) -> Any:
    """`value` as OpenRLHF would hold it. Raises `WrongOptionValue`."""
    if value is None and option.default is None:
        return None
    converted = _CONVERTERS[option.kind](option, value)
    if option.choices and converted not in option.choices:
        native = f"argparse: argument --{option.identity}: invalid choice"
        raise WrongOptionValue(f"one of {', '.join(option.choices)}", native)
    return converted


def shown(value: Any) -> Any:
    """`value` for a finding: plain, and short."""
    if isinstance(value, (bool, type(None))):
        return value
    if isinstance(value, int):
        return value if abs(value) <= LARGEST else "a number of more than 32 bits"
    if isinstance(value, (str, float)):
        return value if len(str(value)) <= 200 else f"{str(value)[:200]}..."
    if isinstance(value, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in value):
        return " ".join(str(shown(item)) for item in value)[:200]
    return f"a {type(value).__name__}"


def _scalar(option: Option, value: Any) -> int | float:
    """An integer, or a number, as the option's kind has it."""
    whole = option.kind == "int"
    expected, kind = ("an integer", int) if whole else ("a number", float)
    native = f"argparse: argument --{option.identity}: invalid {kind.__name__} value"
    if isinstance(value, str) and (not whole or len(value) <= sys.get_int_max_str_digits()):
        with contextlib.suppress(ValueError):
            value = kind(value)
    if not isinstance(value, int if whole else (int, float)) or isinstance(value, bool):
        raise WrongOptionValue(expected, native)
    if whole:
        if abs(value) > LARGEST:
            raise WrongOptionValue(
                f"an integer up to {LARGEST}", "it is accepted, and fails later", "worker_start", value
            )
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or (math.isinf(number) and option.default != math.inf):
        raise WrongOptionValue("a finite number", "it is accepted, and spreads in arithmetic", "never", number)
    return number


def _text(option: Option, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise WrongOptionValue("text", "the command line gives text")


def _flag(option: Option, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongOptionValue("true or false", f"argparse: argument --{option.identity}: ignored explicit argument")


def _several(option: Option, value: Any) -> tuple[Any, ...]:
    """Items of a list, or of text like "0.2 0.28", as it stands on a command line."""
    expected, wanted = _LISTS[option.kind]
    items = value.split() if isinstance(value, str) and len(value) <= _LONGEST else value
    if not isinstance(items, (list, tuple)) or len(items) > _LONGEST:
        items = []
    if not items or (option.kind != "floats" and len(items) != 2):
        raise WrongOptionValue(expected, f"argparse: argument --{option.identity}: expected {wanted}")
    if option.kind == "texts":
        return tuple(map(str, items))
    numbers: list[float] = []
    odd: WrongOptionValue | None = None
    for item in items:
        try:
            numbers.append(_scalar(option, item))
        except WrongOptionValue as wrong:
            if wrong.phase == "config":
                raise
            numbers.append(wrong.held)
            odd = wrong
    if odd is not None:
        raise WrongOptionValue(odd.expected, odd.native, odd.phase, tuple(numbers))
    return tuple(numbers)


_LISTS = {
    "pair": ("two numbers", "2 arguments"),
    "floats": ("a list of numbers", "at least one argument"),
    "texts": ("two texts", "2 arguments"),
}
"""Kinds of lists: what is expected, and what argparse says."""


def _words(option: Option, value: Any) -> tuple[str, ...] | str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise WrongOptionValue("a list of texts", "the command line gives text")


_CONVERTERS: Mapping[str, Callable[[Option, Any], Any]] = {
    **dict.fromkeys(("int", "float"), _scalar),
    **dict.fromkeys(("flag", "flag_off"), _flag),
    **dict.fromkeys(("pair", "floats", "texts"), _several),
    "str": _text,
    "words": _words,
}
