"""Nearest legal neighbours: legal, nearest, found quickly, and none where none is near."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.rules.nearest_numbers import LARGEST, REACH, Variable, divisors, nearest_numbers, neighbours

small = st.integers(1, 12)


def divides(values: Mapping[str, int]) -> bool:
    return (values["devices"] * values["micro"]) % values["group"] == 0


# ---- one integer


@given(
    value=st.integers(-5, 80),
    multiple_of=st.integers(1, 9),
    divided=st.lists(st.integers(1, 60), max_size=2),
    low=st.integers(1, 20),
    high=st.integers(1, 90),
    modulus=st.integers(1, 4),
)
def test_the_nearest_are_those_that_a_search_of_every_number_finds(
    value: int, multiple_of: int, divided: list[int], low: int, high: int, modulus: int
) -> None:
    legal = [
        number
        for number in range(low, high + 1)
        if number % multiple_of == 0 and (not divided or prod(divided) % number == 0) and number % modulus != 1
    ]
    expected = [max((n for n in legal if n < value), default=None), min((n for n in legal if n > value), default=None)]
    found = nearest_numbers(
        value, multiple_of=multiple_of, divides=divided, low=low, high=high, legal=lambda number: number % modulus != 1
    )
    assert found == [number for number in expected if number is not None]


@pytest.mark.parametrize("wanted", [{"multiple_of": 0}, {"multiple_of": -2}, {"divides": 0}, {"divides": (4, 0)}])
def test_nothing_is_a_multiple_of_nothing(wanted: dict[str, int]) -> None:
    assert nearest_numbers(3, **wanted) == []  # type: ignore[arg-type]  # the names are the parametrization's


def test_a_rule_that_nothing_is_known_of_is_asked_so_often_and_no_more() -> None:
    asked: list[int] = []
    assert nearest_numbers(10**6, legal=lambda number: bool(asked.append(number))) == []
    assert len(asked) == 2 * REACH


def test_what_is_known_reaches_any_distance() -> None:
    assert nearest_numbers(1, multiple_of=1_234_567_890) == [1_234_567_890]
    assert nearest_numbers(7, divides=(1 << 31, 3)) == [6, 8]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3))
def test_divisors_are_all_and_only_the_divisors(factors: list[int]) -> None:
    number = prod(factors)
    small_ones = [size for size in range(1, 400) if number % size == 0]
    assert list(divisors(*factors))[: len(small_ones)] == small_ones
    assert all(number % size == 0 for size in divisors(*factors))


@pytest.mark.parametrize("factors", [(65521, 65521, 7), (2095133040, 2095133040, 2095133040)])
def test_divisors_of_products_far_above_32_bits_are_those_within_them(factors: tuple[int, ...]) -> None:
    expected = next(number for number in range(LARGEST - 1, 0, -1) if prod(factors) % number == 0)
    assert nearest_numbers(LARGEST, divides=factors) == [expected]


def test_the_divisors_of_a_large_prime_are_one_and_itself() -> None:
    assert nearest_numbers(7, divides=4294967291) == [1, 4294967291]


def test_divisors_of_the_largest_numbers_take_no_time() -> None:
    start = time.process_time()
    assert divisors(LARGEST)[-1] == LARGEST
    assert divisors((1 << 61) - 1, 10**18 + 9)[0] == 1
    assert time.process_time() - start < 0.2


# ---- several integers and a rule


def test_a_single_change_is_offered_below_and_above_for_each_variable() -> None:
    changes = neighbours([Variable("devices", 7), Variable("micro", 1), Variable("group", 8)], divides)
    assert changes == [{"devices": 8}, {"micro": 8}, {"group": 7}]


def test_both_sides_of_a_variable_are_offered() -> None:
    assert neighbours([Variable("x", 10)], lambda now: now["x"] % 4 == 0) == [{"x": 8}, {"x": 12}]


def test_two_variables_change_together_only_where_one_does_not_suffice() -> None:
    assert neighbours([Variable("x", 1), Variable("y", 1)], lambda now: now["x"] == 3 and now["y"] == 4) == [
        {"x": 3, "y": 4}
    ]


def test_a_value_below_its_minimum_is_moved_into_bounds() -> None:
    assert neighbours([Variable("x", -3)], lambda now: True) == [{"x": 1}]


def test_explicit_bounds_without_a_legal_point_give_nothing() -> None:
    assert neighbours([Variable("x", 3, maximum=6), Variable("y", 1, maximum=6)], lambda now: now["x"] > 6) == []


def test_the_rule_decides_also_where_something_is_known() -> None:
    wanted = [Variable("x", 3, multiple_of=4), Variable("y", 9, divides=8)]
    assert neighbours(wanted, lambda now: now["x"] != 4 and now["y"] < 4) == [{"y": 2}]


@given(devices=small, micro=small, group=st.integers(2, 12), bound=st.integers(12, 20))
def test_every_offer_is_legal_and_nothing_nearer_is(devices: int, micro: int, group: int, bound: int) -> None:
    present = {"devices": devices, "micro": micro, "group": group}
    offers = neighbours([Variable(name, value, maximum=bound) for name, value in present.items()], divides)
    assert offers
    for offer in offers:
        assert divides({**present, **offer})
        ((name, value),) = offer.items()
        between = range(min(value, present[name]) + 1, max(value, present[name]))
        assert not any(divides({**present, name: other}) for other in between)


@given(st.data())
def test_an_offer_exists_exactly_when_the_bounds_hold_a_legal_point(data: st.DataObject) -> None:
    one, other = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    points = [(x, y) for x in range(1, one + 1) for y in range(1, other + 1)]
    allowed = set(data.draw(st.lists(st.sampled_from(points), max_size=3)))
    start = data.draw(st.sampled_from(points))
    allowed.discard(start)
    offers = neighbours(
        [Variable("x", start[0], maximum=one), Variable("y", start[1], maximum=other)],
        lambda now: (now["x"], now["y"]) in allowed,
    )
    assert bool(offers) == bool(allowed)
    assert all((offer.get("x", start[0]), offer.get("y", start[1])) in allowed for offer in offers)


@given(small, small, st.integers(2, 12))
def test_the_answer_is_the_same_every_time(devices: int, micro: int, group: int) -> None:
    variables = [Variable("devices", devices), Variable("micro", micro), Variable("group", group)]
    assert neighbours(variables, divides) == neighbours(variables, divides)


def test_a_search_that_finds_nothing_takes_less_than_a_fifth_of_a_second_of_cpu() -> None:
    variables = [Variable(name, 10**9) for name in ("devices", "micro", "group", "prompts")]
    start = time.process_time()
    assert neighbours(variables, lambda now: False) == []
    assert time.process_time() - start < 0.2
