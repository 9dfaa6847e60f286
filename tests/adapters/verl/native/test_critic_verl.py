"""L2: gradients of a critic in verl's real `TrainingWorker` (FSDP2 engine, gloo) against the float64 oracle, on one and
two ranks, and what is said of a critic that something else has a hand in.

The processes run `processes.py`; this one compares.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.errors import BatchDrift
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.testing.oracle import gradient_bar
from batchbridge_verl.advantages import hold_gae

ALONE = importlib.metadata.version("verl") == "0.8.0"
"""Whether the release takes denominators of each micro-batch alone."""


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def place(request: pytest.FixtureRequest, folder: Callable[..., Path]) -> Path:
    return folder(request.param, "critic")


@pytest.fixture
def found(place: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(place / "measured.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("clip", [0.05, None], ids=["clipped", "not clipped"])
def test_every_step_has_the_oracles_gradient(
    found: dict[str, Any], place: Path, clip: float | None, record: Callable[..., None]
) -> None:
    results = [result for result in found["wrapped"] if result["clip"] == clip]
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.01, result
    assert len({result["aggregation"] for result in results}) == (4 if ALONE else 5)
    assert len({result["split"] for result in results}) in (2, 4)
    assert {(result["rows"], result["silent"]) for result in results} == {(2, 0), (5, 0), (5, 1)}
    worst = max(results, key=lambda result: result["error"])
    ranks = read_headers(place / "critics_ledger")[0]["world_size"]
    what = "clipped" if clip else "not clipped"
    record("gradient", f"critic, {what}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


def test_rows_that_lie_end_to_end_have_the_oracles_gradient(folder: Callable[..., Path]) -> None:
    results = torch.load(folder(1, "critic") / "measured.pt", weights_only=True)["packed"]
    bar = gradient_bar(*(result["floor"] for result in results))
    assert [result for result in results if result["error"] > bar] == []
    assert len(results) == 4 * 2 * 3


def test_enough_values_are_clipped_for_clipping_to_be_tested(found: dict[str, Any]) -> None:
    assert max(result["clipped"] for result in found["wrapped"]) >= 0.05
    assert max(result["clipped"] for result in found["wrapped"]) <= 0.95


@pytest.mark.parametrize("control", ["mean of each micro-batch", "seq-mean-token-sum, filler rows in B"])
def test_negative_control_verl_alone_misses_the_bar_tenfold(
    found: dict[str, Any], control: str, record: Callable[..., None]
) -> None:
    assert found["natively"][control] > 10


def test_positive_control_verl_alone_meets_the_bar_where_its_denominators_are_right(found: dict[str, Any]) -> None:
    assert (found["natively"]["control: token-mean"] > 10) if ALONE else (found["natively"]["control: token-mean"] <= 1)


@pytest.mark.parametrize("loss", ["times seven", "over its own tokens", "mean of each micro-batch"])
def test_a_value_loss_that_does_not_weigh_as_the_plan_does_is_refused_at_attach(
    found: dict[str, Any], loss: str
) -> None:
    if ALONE and loss == "mean of each micro-batch":
        assert found["refused"][loss] == "", "that is its own, which gets the step's denominators"
    else:
        assert "in its optimizer step, and the plan 0.0588235" in found["refused"][loss]
    assert found["refused"]["itself"] == ""


SAID = {
    "the returns": "weights: ",
    "the old values": "weights: the gradient at the log-probabilities of .* is not the one",
    "the loss": "weights: a response token of .*, 7 times what the plan says",
    "the gradient after backward": r"gradient: the gradients that the optimizer finds of .* \(3 times\)",
}


@pytest.mark.parametrize("tampering", SAID)
def test_a_step_that_something_else_has_a_hand_in_ends_before_its_update(found: dict[str, Any], tampering: str) -> None:
    result = found["tampered"][tampering]
    assert result["updates"] == 1, result
    assert re.match(f"optimizer step 1 departs from the plan in its {SAID[tampering]}", result["said"]), result


def test_a_step_that_nothing_else_has_a_hand_in_is_trained(found: dict[str, Any]) -> None:
    assert found["tampered"]["nothing"] == {"said": "", "updates": 2}


def test_other_rows_than_planned_are_refused_before_the_update(found: dict[str, Any]) -> None:
    assert found["members"].startswith("optimizer step 0 departs from the plan in its order")


def test_one_and_two_ranks_write_the_same_ledger_with_the_critics_weights(folder: Callable[..., Path]) -> None:
    one, two = (folder(ranks, "critic") / "critics_ledger" for ranks in (1, 2))
    compared = diff(one, two, rtol=1e-5)
    assert compared.equal, compared.text()
    first = next(iter(read_steps(one)))
    trained = [weight for weight, tokens in zip(first["weights"], first["response_tokens"], strict=True) if tokens]
    assert trained == pytest.approx([1 / first["normaliser"]["tokens"]] * len(trained))


# ---- GAE's advantages, which stay verl's


def gae_plan() -> Plan:
    """A run whose critic has gamma 0.9 and lambda 0.8."""
    critic = Critic(completions_per_step=4, aggregation="token_mean", gamma=0.9, gae_lambda=0.8)
    spec = Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=3, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=6),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(rollouts=1),
        order=Order(seed=1),
        critic=critic,
    )
    return Plan(spec.replace(**{"advantage.baseline": "value", "advantage.scale": "batch"}), 3)


def verls(gamma: float, lam: float) -> dict[str, torch.Tensor]:
    """Columns of a rollout as verl's own code gives them: ragged rows, tools' answers inside, a filler row."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    drawn = torch.Generator().manual_seed(3)
    mask = (torch.arange(9)[None] < torch.tensor([[9], [4], [7], [1], [5], [0]])).float()
    mask[0, 3:5] = 0
    rewards = torch.zeros(6, 9)
    rewards[torch.arange(5), [8, 3, 6, 0, 4]] = torch.tensor([1.0, 0.0, 2.5, -1.0, 0.5])
    values = torch.randn(6, 9, generator=drawn)
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    columns = (rewards, values, mask, advantages, returns)
    return dict(zip(("token_level_rewards", "values", "response_mask", "advantages", "returns"), columns, strict=True))


def test_verls_own_gae_is_the_plans() -> None:
    hold_gae(verls(0.9, 0.8), gae_plan(), 0)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.8), (0.9, 0.95)])
def test_gae_with_other_numbers_than_the_plans_ends_the_run(gamma: float, lam: float) -> None:
    with pytest.raises(BatchDrift, match=r"returns of rollout 0 are not GAE's .*gamma = 0\.9, lambda = 0\.8"):
        hold_gae(verls(gamma, lam), gae_plan(), 0)


def test_advantages_that_are_not_whitened_end_the_run() -> None:
    columns = verls(0.9, 0.8)
    columns["advantages"] = (columns["returns"] - columns["values"]) * columns["response_mask"]
    with pytest.raises(BatchDrift, match="advantages of rollout 0"):
        hold_gae(columns, gae_plan(), 0)
