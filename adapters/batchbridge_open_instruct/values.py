"""Kinds of Open-Instruct's settings: values as HfArgumentParser makes them of the words of a command line."""

from __future__ import annotations

from typing import Any

from batchbridge.kit.kinds import Kind, WrongValue
from batchbridge.kit.parser_kinds import FLOAT, INT

LARGEST = 10**15
"""Largest integer that is taken for a size."""


LARGEST_SEED = 2**32 - 1
"""Largest seed. Source: numpy's random.seed in grpo_fast.py and ppo_vllm_thread_ray_gtrl.py; olmo_core seed_all."""


def integer(least: int = -LARGEST) -> Kind:
    """Integers from `least`, the smallest that makes sense."""

    def convert(value: Any) -> int:
        number: int = INT.convert(value)
        if -LARGEST <= number < least:
            raise WrongValue(f"an integer of at least {least}")
        if abs(number) > LARGEST:
            raise WrongValue(f"an integer of at most {LARGEST:,}")
        return number

    return Kind("int", "an integer", convert)


def _seed(value: Any) -> int:
    number: int = INT.convert(value)
    if not 0 <= number <= LARGEST_SEED:
        raise WrongValue(f"an integer from 0 to {LARGEST_SEED:,}")
    return number


def _integers(value: Any) -> list[int]:
    if value is None:
        raise WrongValue("integers")
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not parts or len(parts) > 100_000:
        raise WrongValue("one integer per node")
    return [POSITIVE.convert(part) for part in parts]


def _text(value: Any) -> str:
    """A number is text, too: a word of a command line that looks like one."""
    if isinstance(value, str):
        return value
    try:
        FLOAT.convert(value)
        return str(value)
    except ValueError:  # no number, or one of thousands of digits
        raise WrongValue("text") from None


def _given(value: Any) -> Any:
    if value is True:  # of a command line, where no word follows
        raise WrongValue("a value")
    return value


ANY_INTEGER, COUNT, POSITIVE = integer(), integer(0), integer(1)
SEED = Kind("int", "an integer", _seed)
PER_NODE = Kind("ints", "integers", _integers)
"""A number for each node."""
TEXT = Kind("str", "text", _text)
GIVEN = Kind("given", "a value", _given)
"""Text, or words."""
