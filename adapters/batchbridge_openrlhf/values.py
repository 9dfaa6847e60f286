"""Values as OpenRLHF's parser holds them: argparse converts text with the option's type, and nothing else is checked.

What argparse refuses is refused here, and so is what a mapping could hold but no command line: flags that are not true
or false, numbers that are not finite, integers beyond 32 bits (no count of a real run comes near).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.kit import LARGEST, Phase
from batchbridge_openrlhf.settings import Option

_LONGEST = 64
"""Characters and items beyond which a list of numbers is not looked at."""


class WrongValue(ValueError):
    """The value is not of its option's kind: what was expected, what OpenRLHF itself would say, and when; `held`: what
    its parser takes it for, unless it refuses it."""

    def __init__(self, expected: str, native: str, phase: Phase = "config", held: Any = None) -> None:
        super().__init__(expected)
        self.expected, self.native, self.phase, self.held = expected, native, phase, held


def convert(option: Option, value: Any) -> Any:
    """`value` as OpenRLHF would hold it. Raises `WrongValue`."""
    if value is None and option.default is None:
        return None
    converted = _CONVERTERS[option.kind](option, value)
    if option.choices and converted not in option.choices:
        raise WrongValue(
            f"one of {', '.join(option.choices)}", f"argparse: argument --{option.identity}: invalid choice"
        )
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


def _integer(option: Option, value: Any) -> int:
    number = value
    if isinstance(value, str) and len(value) <= sys.get_int_max_str_digits():
        try:
            number = int(value)
        except ValueError:
            number = value
    if not isinstance(number, int) or isinstance(number, bool):
        raise WrongValue("an integer", f"argparse: argument --{option.identity}: invalid int value")
    if abs(number) > LARGEST:
        raise WrongValue(f"an integer up to {LARGEST}", "it is accepted, and fails later", "worker_start", number)
    return number


def _number(option: Option, value: Any) -> float:
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = value
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise WrongValue("a number", f"argparse: argument --{option.identity}: invalid float value")
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or (math.isinf(number) and option.default != math.inf):
        raise WrongValue("a finite number", "it is accepted, and spreads in arithmetic", "never", number)
    return number


def _text(option: Option, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise WrongValue("text", "the command line gives text")


def _flag(option: Option, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongValue("true or false", f"argparse: argument --{option.identity}: ignored explicit argument")


def _pair(option: Option, value: Any) -> tuple[float, ...]:
    value = _listed(value)
    if len(value) != 2:
        raise WrongValue("two numbers", f"argparse: argument --{option.identity}: expected 2 arguments")
    return _numbers(option, value)


def _numbers(option: Option, value: Any) -> tuple[float, ...]:
    numbers: list[float] = []
    odd: WrongValue | None = None
    value = _listed(value)
    if not value:
        raise WrongValue("a list of numbers", f"argparse: argument --{option.identity}: expected at least one argument")
    for item in value:
        try:
            numbers.append(_number(option, item))
        except WrongValue as wrong:
            if wrong.phase == "config":
                raise
            numbers.append(wrong.held)
            odd = wrong
    if odd is not None:
        raise WrongValue(odd.expected, odd.native, odd.phase, tuple(numbers))
    return tuple(numbers)


def _texts(option: Option, value: Any) -> tuple[str, ...]:
    value = _listed(value)
    if len(value) != 2:
        raise WrongValue("two texts", f"argparse: argument --{option.identity}: expected 2 arguments")
    return tuple(map(str, value))


def _listed(value: Any) -> list[Any]:
    """The items of a list, or of text like "0.2 0.28", as it stands on a command line; empty where it is neither."""
    if isinstance(value, str) and len(value) <= _LONGEST:
        value = value.split()
    return list(value) if isinstance(value, (list, tuple)) and len(value) <= _LONGEST else []


def _words(option: Option, value: Any) -> tuple[str, ...] | str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise WrongValue("a list of texts", "the command line gives text")


_CONVERTERS: Mapping[str, Callable[[Option, Any], Any]] = {
    "int": _integer,
    "float": _number,
    "str": _text,
    "flag": _flag,
    "flag_off": _flag,
    "pair": _pair,
    "texts": _texts,
    "floats": _numbers,
    "words": _words,
}
