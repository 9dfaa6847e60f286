"""Nearest legal neighbours: legal, nearest, never none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.solve import TooFar, Unsatisfiable, Variable, neighbours

small = st.integers(1, 12)


def divides(values):
    return (values["devices"] * values["micro"]) % values["group"] == 0


def test_a_single_change_is_offered_below_and_above_for_each_variable():
    changes = neighbours([Variable("devices", 7), Variable("micro", 1), Variable("group", 8)], divides)
    assert changes == ({"devices": 8}, {"micro": 8}, {"group": 7})


def test_both_sides_of_a_variable_are_offered():
    changes = neighbours([Variable("x", 10)], lambda v: v["x"] % 4 == 0)
    assert changes == ({"x": 8}, {"x": 12})


def test_two_variables_change_together_only_where_one_does_not_suffice():
    changes = neighbours(
        [Variable("x", 1, maximum=9), Variable("y", 1, maximum=9)], lambda v: v["x"] == 3 and v["y"] == 4
    )
    assert changes == ({"x": 3, "y": 4},)


def test_three_variables_change_together_where_two_do_not_suffice():
    names = ("a", "b", "c")
    changes = neighbours([Variable(n, 1, maximum=3) for n in names], lambda v: all(v[n] == 2 for n in names))
    assert changes == ({"a": 2, "b": 2, "c": 2},)


def test_an_open_maximum_grows_until_something_is_legal():
    assert neighbours([Variable("x", 1)], lambda v: v["x"] >= 5000) == ({"x": 5000},)


def test_explicit_bounds_without_a_legal_point_are_an_error_that_names_them():
    with pytest.raises(Unsatisfiable, match="1 <= x <= 6"):
        neighbours([Variable("x", 3, maximum=6)], lambda v: v["x"] > 6)


def test_a_value_below_its_minimum_is_moved_into_bounds():
    assert neighbours([Variable("x", -3)], lambda v: True) == ({"x": 1},)


@given(devices=small, micro=small, group=st.integers(2, 12), bound=st.integers(12, 20))
def test_every_offer_is_legal_and_nothing_nearer_is(devices, micro, group, bound):
    present = {"devices": devices, "micro": micro, "group": group}
    offers = neighbours([Variable(name, value, maximum=bound) for name, value in present.items()], divides)
    assert offers
    for offer in offers:
        assert divides({**present, **offer})
        ((name, value),) = offer.items()
        between = range(min(value, present[name]) + 1, max(value, present[name]))
        assert not any(divides({**present, name: other}) for other in between)


@given(st.data())
def test_an_offer_exists_exactly_when_the_bounds_hold_a_legal_point(data):
    bounds = [data.draw(st.integers(1, 4)) for _ in range(3)]
    points = list(product(*(range(1, bound + 1) for bound in bounds)))
    allowed = set(data.draw(st.lists(st.sampled_from(points), max_size=3)))
    start = data.draw(st.sampled_from(points))
    allowed.discard(start)
    variables = [Variable(n, v, maximum=b) for n, v, b in zip("abc", start, bounds, strict=True)]

    def legal(values):
        return tuple(values[n] for n in "abc") in allowed

    if allowed:
        assert all(legal({**dict(zip("abc", start, strict=True)), **offer}) for offer in neighbours(variables, legal))
    else:
        with pytest.raises(Unsatisfiable):
            neighbours(variables, legal)


@given(small, small, st.integers(2, 12))
def test_the_answer_is_the_same_every_time(devices, micro, group):
    variables = [Variable("devices", devices), Variable("micro", micro), Variable("group", group)]
    assert neighbours(variables, divides) == neighbours(variables, divides)


def test_a_search_over_real_sizes_takes_less_than_a_tenth_of_a_second_of_cpu():
    variables = [Variable("devices", 509), Variable("micro", 127), Variable("group", 1024)]
    start = time.process_time()
    neighbours(variables, divides)
    assert time.process_time() - start < 0.1


def test_a_search_ends_when_its_budget_is_spent() -> None:
    asked = 0

    def never(assignment: Mapping[str, int]) -> bool:
        nonlocal asked
        asked += 1
        return False

    with pytest.raises(TooFar, match="1000 nearest"):
        neighbours([Variable("a", 10**12), Variable("b", 10**12)], never, budget=1000)
    assert asked == 1000


def test_what_was_found_before_the_budget_was_spent_is_kept() -> None:
    found = neighbours([Variable("a", 10), Variable("b", 10**12)], lambda now: now["a"] == 8, budget=500)
    assert found == ({"a": 8},)
