"""Nearest legal sizes by arithmetic are those that a search over every value finds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.solve import Unsatisfiable, Variable, neighbours
from batchbridge_trl.nearest import LARGEST, divisors, multiples

small = st.integers(1, 60)


def searched(value, low, high, legal):
    """What the search of every value finds."""
    try:
        changes = neighbours([Variable("x", value, low, high)], lambda values: legal(values["x"]))
    except Unsatisfiable:
        return []
    return [change["x"] for change in changes]


@given(small, small, small, st.integers(0, 90))
def test_multiples_are_the_nearest_ones(of, value, low, high):
    assert multiples(of, value, low, high) == searched(value, low, high, lambda number: number % of == 0)


@given(st.lists(small, min_size=1, max_size=3), small, small, st.integers(0, 9000))
def test_divisors_are_the_nearest_ones(of, value, low, high):
    product = 1
    for factor in of:
        product *= factor
    assert divisors(tuple(of), value, low, high) == searched(value, low, high, lambda number: product % number == 0)


@pytest.mark.parametrize("of", [(65521, 65521, 7), (2095133040, 2095133040, 2095133040)])
def test_divisors_of_products_far_above_32_bits_are_those_within_them(of):
    product = math.prod(of)
    expected = next(number for number in range(LARGEST - 1, 0, -1) if product % number == 0)
    assert divisors(of, LARGEST, 1, LARGEST) == [expected]


def test_the_divisors_of_a_large_prime_are_one_and_itself():
    assert divisors((4294967291,), 7, 1, LARGEST) == [1, 4294967291]
