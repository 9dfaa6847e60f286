"""Group advantages by rule, without a tensor library."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.rounding import float32_rooms
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


@given(REWARDS, st.sampled_from([0, 1]))
def test_the_deviation_of_the_others_is_theirs(groups: list[list[float]], ddof: int) -> None:
    rule = Advantage(baseline="leave_one_out", scale="group_others", epsilon=0.25, ddof=ddof)
    for group, values in zip(groups, group_advantages(groups, rule), strict=True):
        for place, value in enumerate(values):
            others = group[:place] + group[place + 1 :]
            mean = sum(others) / len(others)
            deviation = math.sqrt(sum((other - mean) ** 2 for other in others) / (len(others) - ddof))
            assert value == pytest.approx((group[place] - mean) / (deviation + 0.25 if deviation else 1), abs=1e-9)


ONE_OF_16 = [1.0] + [0.0] * 15
TWO_OF_16 = [1.0, 1.0] + [0.0] * 14
HALF_OF_16 = [1.0, 0.0] * 8


@pytest.mark.parametrize(
    ("baseline", "scale", "group", "success", "failure"),
    [
        # NeMo-RL's default, computed by its calculate_baseline_and_std_per_prompt, v0.7.0; a success's others are all 0
        ("leave_one_out", "group_others", ONE_OF_16, 1.0, -0.258199),
        ("leave_one_out", "group_others", TWO_OF_16, 3.614784, -0.378932),
        ("leave_one_out", "group_others", HALF_OF_16, 1.032796, -1.032796),
        ("leave_one_out", "group", ONE_OF_16, 4.0, -0.266667),
        ("leave_one_out", "group", TWO_OF_16, 2.732520, -0.390360),
        ("leave_one_out", "group", HALF_OF_16, 1.032796, -1.032796),
    ],
)
def test_16_completions_have_these_advantages(
    baseline: Literal["leave_one_out"],
    scale: Literal["group", "group_others"],
    group: list[float],
    success: float,
    failure: float,
) -> None:
    rule = Advantage(baseline=baseline, scale=scale, ddof=1)
    (found,) = group_advantages([group], rule)
    assert (found[0], found[-1]) == pytest.approx((success, failure), abs=1e-6)


def test_a_group_of_two_has_no_deviation_of_the_others() -> None:
    rule = Advantage(baseline="leave_one_out", scale="group_others", ddof=1, epsilon=1e-6)
    assert group_advantages([[1.0, 0.0]], rule) == [[1.0, -1.0]]


def test_rounding_makes_no_deviation_of_equal_rewards() -> None:
    rule = Advantage(baseline="leave_one_out", scale="group_others", ddof=1)
    for reward in (0.1, 0.3, 1 / 3, 1e-9):
        (found,) = group_advantages([[2.0, *[reward] * 15]], rule)
        assert found[0] == pytest.approx(2.0 - reward)


def test_bounds_of_advantages_need_not_be_symmetric() -> None:
    rule = Advantage(baseline="group_mean", scale="none", minimum=-0.25, maximum=2.0)
    assert group_advantages([[0.0, 1.0, 5.0]], rule) == [[-0.25, -0.25, 2.0]]
    assert group_advantages([[0.0, 4.0]], Advantage(scale="none", maximum=1.0)) == [[-2.0, 1.0]]


def test_an_unanswered_reward_takes_no_part() -> None:
    rule = Advantage(baseline="group_mean", scale="none", minimum=-0.5, maximum=0.5)
    assert group_advantages([[1.0, math.nan, 3.0]], rule) == [[-0.5, 0.0, 0.5]]


@pytest.mark.parametrize("baseline", ["value", "open"])
def test_these_baselines_are_no_rule_of_rewards(baseline: Any) -> None:
    with pytest.raises(ValueError, match="rewards do not decide it"):
        group_advantages([[1.0]], Advantage(baseline=baseline))


def test_rounding_of_equal_rewards_is_divided_by_what_divides_them() -> None:
    """Seven rewards of 0.1 differ from their float32 mean by 7e-9, which TRL divides by 1e-4."""
    equal, spread = [0.1] * 7, [0.0, 1.0] * 4
    group = Advantage(baseline="group_mean", scale="group", epsilon=1e-4, ddof=1)
    rooms = float32_rooms([equal, spread], group_advantages([equal, spread], group), group)
    assert 7e-5 < rooms[0] < 1e-2
    assert rooms[1] < 1e-4
    whole = dataclasses.replace(group, scale="batch")
    assert float32_rooms([equal, spread], group_advantages([equal, spread], whole), whole)[0] < 1e-6
    assert float32_rooms([equal, equal], group_advantages([equal, equal], whole), whole)[0] > 7e-5
    plain = dataclasses.replace(group, scale="none")
    assert float32_rooms([equal], group_advantages([equal], plain), plain)[0] < 1e-6
