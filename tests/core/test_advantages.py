"""Group advantages by rule, without a tensor library."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.spec import Advantage

REWARDS = st.lists(st.lists(st.integers(-20, 20).map(float), min_size=4, max_size=4), min_size=1, max_size=5)


@given(REWARDS)
def test_a_group_mean_leaves_no_mean(groups: list[list[float]]) -> None:
    for group in group_advantages(groups, Advantage(baseline="group_mean", scale="none")):
        assert math.fsum(group) == pytest.approx(0, abs=1e-9)


@given(REWARDS)
def test_leave_one_out_is_the_reward_minus_the_others_mean(groups: list[list[float]]) -> None:
    found = group_advantages(groups, Advantage(baseline="leave_one_out", scale="none"))
    for group, values in zip(groups, found, strict=True):
        for place, value in enumerate(values):
            others = group[:place] + group[place + 1 :]
            assert value == pytest.approx(group[place] - sum(others) / len(others), abs=1e-9)


@pytest.mark.parametrize(("ddof", "deviation"), [(0, math.sqrt(2 / 3)), (1, 1.0)])
def test_the_deviation_is_that_of_the_group_with_the_rules_ddof_and_epsilon(ddof: int, deviation: float) -> None:
    rule = Advantage(baseline="group_mean", scale="group", epsilon=0.5, ddof=ddof)
    ((low, middle, high),) = group_advantages([[1.0, 2.0, 3.0]], rule)
    assert (low, middle, high) == pytest.approx((-1 / (deviation + 0.5), 0.0, 1 / (deviation + 0.5)))


def test_the_batch_deviation_is_one_over_all_groups() -> None:
    rule = Advantage(baseline="group_mean", scale="batch", ddof=0)
    found = group_advantages([[0.0, 2.0], [4.0, 4.0]], rule)
    scale = math.sqrt(((0 - 2.5) ** 2 + (2 - 2.5) ** 2 + 2 * (4 - 2.5) ** 2) / 4)
    assert found == [[pytest.approx(-1 / scale), pytest.approx(1 / scale)], [0.0, 0.0]]


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages([[3.0]], Advantage(baseline="group_mean", scale="group", epsilon=1e-6)) == [[0.0]]


def test_an_unanswered_reward_takes_no_part() -> None:
    rule = Advantage(baseline="group_mean", scale="none", clip=0.5)
    assert group_advantages([[1.0, math.nan, 3.0]], rule) == [[-0.5, 0.0, 0.5]]


def test_a_value_baseline_is_no_rule_of_rewards() -> None:
    with pytest.raises(ValueError, match="needs a critic"):
        group_advantages([[1.0]], Advantage(baseline="value"))
