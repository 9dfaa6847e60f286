"""What makes advantages, held: settings that it reads, what it gives, and digests of what rows carry from there on."""

from __future__ import annotations

import math

import pytest

from batchbridge.errors import BatchDrift
from batchbridge.kit.producers import ProducerSettings, advantage_objection, is_recomputed, ruled_advantages
from batchbridge.kit.row_digests import digest_of, digests_of, input_objection
from batchbridge.meaning.spec import Advantage

GRPO = Advantage(baseline="group_mean", scale="group", epsilon=1e-6, ddof=1)
REWARDS = [1.0, 0.0, 0.5, 0.5, 2.0, -1.0, 3.0, 0.25]


def objection(found: list[float]) -> str | None:
    return advantage_objection(enumerate(found), ruled_advantages(REWARDS, GRPO, 4))


def test_a_setting_that_was_changed_is_refused_by_its_name_and_with_both_values() -> None:
    now = {"rollout.temperature": 1.0, "rollout.n": 4}
    settings = ProducerSettings(lambda: now)
    settings.require(0)
    now["rollout.temperature"] = 1.2
    with pytest.raises(BatchDrift, match=r"step 3 .* settings: rollout.temperature was 1.0 .* and is 1.2") as refused:
        settings.require(3)
    assert (refused.value.step, refused.value.aspect) == (3, "settings")


def test_advantages_of_the_rule_pass_with_the_rounding_of_float32() -> None:
    exact = ruled_advantages(REWARDS, GRPO, 4).values
    assert objection(exact) is None
    assert objection([value * (1 + 2.0**-22) for value in exact]) is None


@pytest.mark.parametrize("factor", [1.05, 1.0001])
def test_advantages_that_were_scaled_are_named_with_what_the_rewards_give(factor: float) -> None:
    exact = ruled_advantages(REWARDS, GRPO, 4).values
    said = objection([value * factor for value in exact])
    assert said is not None
    assert said.startswith(f"completion 0 of the rollout has the advantage {exact[0] * factor:.6g}")
    assert 'allow=("advantages",)' in said


def test_advantages_of_two_rows_that_were_exchanged_are_noticed() -> None:
    exact = ruled_advantages(REWARDS, GRPO, 4).values
    assert objection([exact[1], exact[0], *exact[2:]]) is not None


def test_an_advantage_that_is_no_number_is_noticed() -> None:
    exact = ruled_advantages(REWARDS, GRPO, 4).values
    assert objection([math.nan, *exact[1:]]) is not None


def test_a_scale_of_the_whole_rollout_and_a_critics_advantages_are_carried() -> None:
    assert is_recomputed(GRPO)
    assert not is_recomputed(Advantage(baseline="group_mean", scale="batch"))
    assert not is_recomputed(Advantage(baseline="value", scale="batch"))
    assert not is_recomputed(Advantage(baseline="open", scale="none"))


def test_a_digest_is_of_values_and_not_of_their_container() -> None:
    assert digest_of([1, 2, 3]) == digest_of((1, 2, 3))
    assert digest_of([1, 2, 3]) != digest_of([1, 3, 2])
    assert digest_of([0.5, -0.0]) == digest_of([0.5, 0.0])
    assert digest_of([0.5]) != digest_of([0.5 * (1 + 2.0**-23)])
    assert 0 <= digest_of([]) < 2**56


def test_the_columns_that_changed_are_named_with_their_row() -> None:
    columns = {"advantages": [0.5, 0.5], "old_log_probs": [-1.0, -2.0], "ref_log_prob": None}
    told = digests_of(columns)
    assert set(told) == {"advantages", "old_log_probs"}
    assert input_objection(told, digests_of(columns), "prompt 3 sample 1") is None
    said = input_objection(told, digests_of({**columns, "advantages": [0.525, 0.525]}), "prompt 3 sample 1")
    assert said is not None
    assert said.startswith("advantages of prompt 3 sample 1 is not what the trainer's process sent")
    assert said.aspect == "inputs"


def test_a_column_that_does_not_arrive_is_one_that_changed() -> None:
    assert input_objection(digests_of({"advantages": [0.5]}), {}, "prompt 3 sample 1") is not None
