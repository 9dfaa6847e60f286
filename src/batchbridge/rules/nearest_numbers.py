"""The nearest legal neighbours of an illegal configuration: what a person could change, by how little.

`nearest_numbers` is for one integer, `neighbours` for integers that one rule binds together. Where it is known what
legal values are multiples or divisors of, they are found by arithmetic, as quickly for two billion devices as for
eight; otherwise the rule is asked, a bounded number of times."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice, product
from typing import NamedTuple

LARGEST = (1 << 32) - 1
"""The largest integer that is proposed. Seeds end here (numpy.random.seed), and no count of a real run comes near."""

REACH = 4096
"""The number of values of one integer asked about on each side: every multiple of up to 4,096 devices lies nearer."""


def nearest_numbers(
    value: int,
    *,
    multiple_of: int = 1,
    divides: int | Sequence[int] = (),
    low: int = 1,
    high: int = LARGEST,
    legal: Callable[[int], bool] = lambda number: True,
) -> list[int]:
    """The nearest legal integers below and above `value`, itself left out: none, one or both.

    multiple_of: what they are multiples of; nothing is a multiple of less than 1. divides: a number, or the factors of
    a product, that they divide; of factors beyond 32 bits not every divisor is known. low, high: the bounds, both
    legal. legal: what else is asked of them.
    """
    factors = (divides,) if isinstance(divides, int) else tuple(divides)
    if multiple_of < 1 or any(factor < 1 for factor in factors):
        return []
    sides: tuple[Iterable[int], Iterable[int]]
    if factors:
        known = [number for number in divisors(*factors) if low <= number <= high and number % multiple_of == 0]
        sides = reversed(known[: bisect_left(known, value)]), known[bisect_right(known, value) :]
    else:
        below = min(value - 1, high) // multiple_of * multiple_of
        above = -(-max(value + 1, low) // multiple_of) * multiple_of
        sides = range(below, low - 1, -multiple_of), range(above, high + 1, multiple_of)
    found = (next(filter(legal, islice(side, REACH)), None) for side in sides)
    return [number for number in found if number is not None]


class Variable(NamedTuple):
    """An integer that may be changed: its present value, and its bounds, both legal.

    multiple_of and divides say what is known of its legal values while the other integers stay as they are: see
    `nearest_numbers`. Nothing has to be known; knowing it makes the search quick and its reach unlimited.
    """

    name: str
    value: int
    minimum: int = 1
    maximum: int = LARGEST
    multiple_of: int = 1
    divides: int | Sequence[int] = ()


def neighbours(variables: Sequence[Variable], legal: Callable[[Mapping[str, int]], bool]) -> list[dict[str, int]]:
    """The nearest legal changes, each as {name: new value}; empty where none is near.

    For every variable the nearest legal values below and above its present one, the others unchanged, in the order of
    `variables`. Where no single change works, the nearest changes of every two, nearest first. legal: whether an
    assignment, which has all names, is legal.
    """
    present = {variable.name: variable.value for variable in variables}
    alone = [change for variable in variables for change in _alone(variable, present, legal)]
    if alone:
        return alone
    pairs = [change for pair in combinations(variables, 2) for change in _together(*pair, present, legal)]
    return sorted(pairs, key=lambda change: _size(*(value - present[name] for name, value in change.items())))


def divisors(*factors: int) -> tuple[int, ...]:
    """The divisors, up to `LARGEST`, of the product of `factors` (each > 0), sorted.

    The prime factors above 2**16 of a factor count as one, so that no number takes long: below 2**32 that is exact.
    """
    return _divisors(tuple(sorted(factors)))


@lru_cache(maxsize=64)
def _divisors(factors: tuple[int, ...]) -> tuple[int, ...]:
    found = [1]
    for prime, power in sum((_prime_powers(factor) for factor in factors), Counter[int]()).items():
        found = [
            multiple
            for number in found
            for exponent in range(power + 1)
            if (multiple := number * prime**exponent) <= LARGEST
        ]
    return tuple(sorted(found))


def _prime_powers(number: int) -> Counter[int]:
    powers: Counter[int] = Counter()
    prime = 2
    while prime * prime <= number and prime < 1 << 16:
        while number % prime == 0:
            powers[prime] += 1
            number //= prime
        prime += 1 if prime == 2 else 2
    if number > 1:
        powers[number] += 1
    return powers


def _alone(
    variable: Variable, present: Mapping[str, int], legal: Callable[[Mapping[str, int]], bool]
) -> list[dict[str, int]]:
    changed = dict(present)

    def legal_alone(value: int) -> bool:
        changed[variable.name] = value
        return legal(changed)

    found = nearest_numbers(
        variable.value,
        multiple_of=variable.multiple_of,
        divides=variable.divides,
        low=variable.minimum,
        high=variable.maximum,
        legal=legal_alone,
    )
    return [{variable.name: value} for value in found]


def _together(
    one: Variable, other: Variable, present: Mapping[str, int], legal: Callable[[Mapping[str, int]], bool]
) -> list[dict[str, int]]:
    """The nearest legal change of both: the smallest larger step, then the smallest sum."""
    changed = dict(present)
    for step, other_step in _pairs_of_steps():
        first, second = one.value + step, other.value + other_step
        if one.minimum <= first <= one.maximum and other.minimum <= second <= other.maximum:
            changed[one.name], changed[other.name] = first, second
            if legal(changed):
                return [{one.name: first, other.name: second}]
    return []


@lru_cache(maxsize=1)
def _pairs_of_steps() -> tuple[tuple[int, int], ...]:
    """The `REACH` smallest changes of two integers at once, the smallest first."""
    farthest = math.isqrt(REACH) // 2
    sides = [step for step in range(-farthest, farthest + 1) if step]
    return tuple(sorted(product(sides, sides), key=lambda steps: _size(*steps)))


def _size(step: int, other: int) -> tuple[int, int]:
    return max(abs(step), abs(other)), abs(step) + abs(other)
