"""L2 of a critic (gae): OpenRLHF's real `CriticPPOTrainer` under DeepSpeed's ZeRO on one and two ranks, padded and
packed samples, and a whole `PPOTrainer.fit` that trains both models, against the float64 oracle.

The processes run `critics.py` and `critic_fits.py`; this one compares.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
import torch
from critic_tampering import LOSSES, WAYS
from packaging.version import Version
from tampering import STEP

from batchbridge.testing.equivalence import TRAJECTORY_BAR
from batchbridge.testing.oracle import gradient_bar, relative_error
from batchbridge_on_cpu.trajectories import assert_other_end, assert_same_end

RECORD = "critics"
DIVIDED_TWICE = Version(importlib.metadata.version("openrlhf")) < Version("0.11.2")
"""Whether the DeepSpeed of this release divides the gradients of the critic's layers twice (BB-ORL-069)."""
SETUPS = {
    "one rank": pytest.param((1,), marks=pytest.mark.by_hand),
    "two ranks": (2,),
    "packed": pytest.param((1, "packed"), marks=pytest.mark.by_hand),
    "packed, two ranks": (2, "packed"),
}


@pytest.fixture(params=list(SETUPS.values()), ids=list(SETUPS))
def measured(run: Callable[..., dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `critics.py` found."""
    ranks, *flags = request.param
    return {**run("critics", ranks, *flags), "ranks": ranks, "packed": "packed" in flags}


@pytest.fixture
def fitted(run: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What `critic_fits.py` found, without Ray's processes."""
    return run("critic_fits", 0)


@pytest.mark.parametrize("of", ["critic", "policy"])
def test_every_step_has_the_oracles_gradient(measured: dict[str, Any], of: str, record: Callable[..., None]) -> None:
    """The policy's with advantages of single tokens."""
    results = [result for result in measured["wrapped"] if result["of"] == of]
    assert len(results) >= 2 * 6
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    if of == "critic":
        assert max(result["clipped"] for result in results) > 0.05, "values are clipped in some steps"
    worst = max(results, key=lambda result: float(result["error"]))
    name = f"{'packed: ' if measured['packed'] else ''}gae, gradient of the {of}, ranks: {measured['ranks']}"
    record(name, error=worst["error"], float32=worst["floor"], of_the_bar=worst["error"] / bar)


def test_negative_control_a_mean_over_each_micro_batch_misses_the_bar_tenfold(measured: dict[str, Any]) -> None:
    assert measured["natively"]["own mean"] > 10


def test_negative_control_dynamic_batches_alone_miss_the_bar_tenfold(measured: dict[str, Any]) -> None:
    """DeepSpeed loses gradients of the critic, too (BB-ORL-042)."""
    assert measured["natively"]["ZeRO-1, dynamic"] > 10


@pytest.mark.parametrize(
    "trainer",
    [pytest.param("ZeRO-2", marks=pytest.mark.skipif(DIVIDED_TWICE, reason="BB-ORL-069")), "ZeRO-3, dynamic"],
)
def test_positive_control_openrlhf_alone_meets_the_bar_where_it_loses_nothing(
    measured: dict[str, Any], trainer: str
) -> None:
    assert measured["natively"][trainer] <= 1


@pytest.mark.skipif(not DIVIDED_TWICE, reason="of earlier releases")
def test_negative_control_before_0_11_2_several_micro_batches_alone_miss_the_bar(
    measured: dict[str, Any], record: Callable[..., None]
) -> None:
    """DeepSpeed divides at each of a model's outputs, and the critic hands out hidden states beside its values."""
    found = measured["natively"]["ZeRO-2"]
    assert found > 1e4
    if not measured["packed"]:
        record(f"gae, alone, ZeRO-2, several micro-batches, ranks: {measured['ranks']}", of_the_bar=found)


@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_a_critic_whose_layers_are_divided_twice_is_not_called_measured(measured: dict[str, Any], mode: str) -> None:
    """Under ZeRO-2 with several micro-batches, and only there."""
    assert measured["natively attached"]["ZeRO-2"][mode] == (["critic_divided"] if DIVIDED_TWICE else [])
    assert measured["natively attached"]["ZeRO-3, dynamic"][mode] == []


@pytest.mark.parametrize("loss", LOSSES)
def test_a_value_loss_that_weighs_otherwise_is_refused(measured: dict[str, Any], loss: str) -> None:
    assert measured["refused"][loss] == "weight_probe"


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("way", WAYS)
def test_a_critics_step_that_is_tampered_with_is_applied_on_no_rank(
    measured: dict[str, Any], way: str, mode: str
) -> None:
    """Enforced under ZeRO-2; verified under ZeRO-3, where OpenRLHF's own dynamic batches lose nothing."""
    told = measured["tampered"][mode][way]["ranks"]
    expected = [(STEP, WAYS[way][1], STEP)] * measured["ranks"]
    assert [(one["step"], one["aspect"], one["applied"]) for one in told] == expected, told
    assert all("the critic" in one["detail"] for one in told)


@pytest.mark.parametrize(("mode", "steps"), [("enforce", 6), ("verify", 4)])
def test_a_critics_step_that_nobody_tampers_with_is_trained(measured: dict[str, Any], mode: str, steps: int) -> None:
    told = measured["tampered"][mode]["nobody"]["ranks"]
    assert [(one["detail"], one["applied"]) for one in told] == [("trained to its end", steps)] * measured["ranks"]


def test_a_critic_whose_loss_deepspeed_divides_after_all_is_told_before_its_first_update(
    run: Callable[..., dict[str, Any]],
) -> None:
    told = run("critic_undone", 1)
    assert told["left alone"] == ""
    assert "optimizer step 0 departs from the plan in its weights: the critic" in told["undone"]


RUNS = {"own": (6, 6), "micro": (6, 6), "packed": (6, 6), "passes": (18, 18), "warmup": (4, 6)}
"""Runs of `critic_fits.py`, and the policy's and the critic's optimizer steps."""


@pytest.mark.parametrize(("name", "steps"), RUNS.items())
def test_a_whole_run_trains_both_models_by_its_plan_with_the_oracles_gradients(
    fitted: dict[str, Any], name: str, steps: tuple[int, int], record: Callable[..., None]
) -> None:
    for model, count in zip(("policy", "critic"), steps, strict=True):
        found = fitted[name][model]
        assert len(found) == count
        assert all(step["planned"] for step in found)
        bar = gradient_bar(*(step["floor"] for step in found))
        worst = max(found, key=lambda step: float(step["error"]))
        assert worst["error"] <= bar, worst
        assert min(step["norm"] for step in found) > 0.1
        record(f"gae, fit {name}: {model}", error=worst["error"], float32=worst["floor"])
    assert max(step["clipped"] for step in fitted[name]["critic"]) > 0.05


@pytest.mark.parametrize("name", RUNS)
def test_the_advantage_of_every_token_reaches_the_replay_buffer_as_gae_has_it(
    fitted: dict[str, Any], name: str
) -> None:
    assert fitted[name]["completions"] == {"warmup": 24}.get(name, 36), "the warm-up's come to the critic alone"
    assert fitted[name]["advantages"] < 1e-5


def test_micro_batches_and_zero_stages_do_not_change_where_the_policy_ends(fitted: dict[str, Any]) -> None:
    start, ends = fitted["start"]["policy"], {name: end["policy"] for name, end in fitted["ends"].items()}
    assert_same_end("openrlhf, gae: micro-batches", start, ends["own"], ends["micro"])
    assert_other_end("openrlhf, gae unwrapped", start, ends["own"], ends["observed"])


def test_micro_batches_and_zero_stages_do_not_change_where_the_critic_ends(fitted: dict[str, Any]) -> None:
    start, ends = fitted["start"]["critic"], {name: end["critic"] for name, end in fitted["ends"].items()}
    moved = ends["own"] - start
    assert relative_error(ends["micro"] - start, moved) <= TRAJECTORY_BAR
    assert relative_error(ends["observed"] - start, moved) > 10 * TRAJECTORY_BAR


def test_the_critics_steps_of_an_observed_run_are_written_down(fitted: dict[str, Any]) -> None:
    assert fitted["observed"] == 36


def test_other_returns_of_the_critic_end_a_run_before_the_step(fitted: dict[str, Any]) -> None:
    said, reached = fitted["tampered"]
    assert "optimizer step 2 departs from the plan in its weights: the critic" in said
    assert reached == "3", "the third step's gradient was there, and is not applied"


def test_in_a_warm_up_the_critic_is_trained_and_the_policy_stays_as_it_was(fitted: dict[str, Any]) -> None:
    found = fitted["warmup"]
    assert found["rollouts"] == [[1], [1], [2], [2]], "the policy's steps"
    assert found["critic's rollouts"] == [[0], [0], [1], [1], [2], [2]]
    assert torch.equal(found["begin"]["policy"], fitted["start"]["policy"]), "what its first step is about to update"
    assert relative_error(found["warm"], found["begin"]["critic"]) > 1e-2


def test_negative_control_a_policy_that_is_trained_on_the_warm_up_misses_the_bar_tenfold(
    fitted: dict[str, Any],
) -> None:
    found = fitted["warmup"]
    assert min(found["instead"]) > 10 * gradient_bar(*(step["floor"] for step in found["policy"]))


@pytest.mark.parametrize("model", ["policy", "critic"])
def test_a_warm_up_ends_alike_by_the_trainers_option_by_a_specification_and_resumed(
    fitted: dict[str, Any], model: str
) -> None:
    found = fitted["warmup"]
    ends = {name: end[model] for name, end in found["ends"].items()}
    assert torch.equal(ends["own"], ends["asked for"])
    assert torch.equal(ends["own"], ends["resumed"])
    assert found["resumed"] == [0, 1, 2, 3]


def test_negative_control_alone_the_policy_is_trained_on_the_warm_up_later_and_ends_elsewhere(
    fitted: dict[str, Any],
) -> None:
    found = fitted["warmup"]
    assert {0} < {rollout for step in found["alone"] for rollout in step}
    start, ends = found["begin"]["policy"], {name: end["policy"] for name, end in found["ends"].items()}
    assert_other_end("openrlhf, warm-up unwrapped", start, ends["own"], ends["alone"])


def test_a_policy_that_trains_in_the_warm_up_or_gets_its_completions_ends_the_run(fitted: dict[str, Any]) -> None:
    by_policy, updates, by_rows, others = fitted["too early"]
    assert "no rank holds a completion for it" in by_policy
    assert "the replay buffers hold rollouts [0, 1]" in by_rows
    assert updates == others == "0"
