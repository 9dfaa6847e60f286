"""The nearest multiples and divisors, by arithmetic: as quick for two billion devices as for eight."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

LARGEST = (1 << 32) - 1
"""The largest integer that any setting may have; larger ones are a finding. Seeds end here (numpy.random.seed), and no
count of a real run comes near."""


def multiples(of: int, value: int, low: int, high: int) -> list[int]:
    """The nearest multiple of `of` (> 0) below `value` and the nearest above it, where they lie in [low, high]."""
    below = min(value - 1, high) // of * of
    above = -(-max(value + 1, low) // of) * of
    return [*([below] if below >= low else []), *([above] if above <= high else [])]


def divisors(of: tuple[int, ...], value: int, low: int, high: int) -> list[int]:
    """The nearest divisor of the product of `of` (each > 0) below `value` and the nearest above it, in [low, high]."""
    legal = [number for number in _divisors(of) if low <= number <= high]
    below = [number for number in legal if number < value]
    above = [number for number in legal if number > value]
    return [*below[-1:], *above[:1]]


@lru_cache(maxsize=16)
def _divisors(factors: tuple[int, ...]) -> tuple[int, ...]:
    """The divisors of the product of `factors`, sorted, up to `LARGEST`."""
    found = [1]
    for prime, power in sum((_prime_powers(factor) for factor in factors), Counter()).items():
        found = [
            product
            for number in found
            for exponent in range(power + 1)
            if (product := number * prime**exponent) <= LARGEST
        ]
    return tuple(sorted(found))


def _prime_powers(number: int) -> Counter[int]:
    """Trial division: at most 65,536 trials below 2**32."""
    powers: Counter[int] = Counter()
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            powers[prime] += 1
            number //= prime
        prime += 1 if prime == 2 else 2
    if number > 1:
        powers[number] += 1
    return powers
