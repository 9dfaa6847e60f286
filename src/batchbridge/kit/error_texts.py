"""Helpers for the rows of `Adapter.error_texts`: patterns with numbers in them, and ways out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from batchbridge.meaning.findings import Fix
from batchbridge.rules.nearest_numbers import nearest_numbers


def pattern(text: str, *names: str) -> str:
    """`text`, a regular expression, with its `#`s standing for whole numbers with these names, in order."""
    first, *rest = text.split("#")
    return first + "".join(rf"(?P<{name}>\d{{1,9}}){part}" for name, part in zip(names, rest, strict=True))


def setting(key: str, *values: int) -> Iterator[Fix]:
    """One way out for each value: `key = value`."""
    for value in values:
        yield Fix(f"{key} = {value}", {key: value})


def devices(*counts: int) -> Iterator[Fix]:
    """One way out for each number of devices."""
    for count in counts:
        yield Fix(f"{count} device{'' if count == 1 else 's'}")


def smallest_factor(of: int, others: int) -> int:
    """The smallest factor that makes `others` times it a multiple of `of`; 0 where there is none."""
    return of // math.gcd(of, others) if of and others else 0


def multiples(of: int, value: int) -> list[int]:
    """`value` if it is a multiple of `of`, else the nearest ones."""
    return [value] if of > 0 < value and value % of == 0 else nearest_numbers(value, multiple_of=of)


def divisors(number: int, value: int, least: int = 1) -> list[int]:
    """`value` if it divides `number`, else the nearest divisors, from `least` on."""
    divides = number > 0 and value >= least and number % value == 0
    return [value] if divides else nearest_numbers(value, divides=number, low=least)
