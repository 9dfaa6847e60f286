"""The gradients of OpenRLHF's own `PolicyLoss` and KL estimators, held against the adapter's formulas of their factors:
what runs do that `--allow` accepts. No trainer and no model."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from batchbridge.kit.measuring import Tap
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, Objective, OptimizerStep, Rollout, Spec, Topology
from batchbridge_openrlhf.meaning import CORRECTION_WORDS
from batchbridge_openrlhf.on_cpu import cpu

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # openrlhf.models compiles a function when it is imported
cpu.start()

from openrlhf.models import PolicyLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl

from batchbridge_openrlhf.watching import OpenRlhfStepInputs, measurable, rows_of

PPO = {"surrogate": "ppo", "ratio_level": "token", "clip_low": 0.2, "clip_high": 0.2, "old_logprobs": "rollout_start"}
LENGTHS = (1, 3, 9, 6)


def spec_of(**objective: Any) -> Spec:
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=1),
        optimizer_step=OptimizerStep(completions_per_step=4),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1.0),
        objective=Objective(**{**PPO, **objective}),
    )


def given() -> tuple[torch.Tensor, OpenRlhfStepInputs]:
    """Log-probabilities, and a micro-batch whose old, sampled and reference ones are around them."""
    generator = torch.Generator().manual_seed(7)
    shape = (len(LENGTHS), max(LENGTHS))

    def near(scale: float) -> torch.Tensor:
        return new + scale * torch.randn(shape, generator=generator)

    new = -2 - torch.rand(shape, generator=generator)
    mask = torch.tensor([[1] * length + [0] * (shape[1] - length) for length in LENGTHS])
    ids = torch.ones(shape[0], shape[1] + 1, dtype=torch.long)
    advantages = torch.tensor([[0.5], [-1.0], [2.0], [-0.25]]) * mask
    return new, OpenRlhfStepInputs(ids, torch.ones_like(ids), mask, advantages, near(0.1), near(0.4), near(0.3))


@pytest.mark.parametrize(("level", "mode", "gating"), CORRECTION_WORDS)
@pytest.mark.parametrize("formula", ["the adapter's", "none"])
def test_corrections_towards_the_sampler_are_what_the_adapter_takes_them_for(
    level: str, mode: str, gating: str, formula: str
) -> None:
    bounds = (0.8, 1.3) if gating == "ratio" else (0.0, 0.02)
    loss = PolicyLoss(
        is_correction_level=level,
        is_correction_mode=mode,
        is_correction_gating=gating,
        is_correction_threshold=bounds,
    )
    new, micro_batch = given()
    word = f"{CORRECTION_WORDS[level, mode, gating]} [{bounds[0] or '-'}, {bounds[1]}]"
    spec = spec_of(sampler_correction=word if formula == "the adapter's" else None)
    tap = Tap(spec.objective)
    leaf = tap.leaf(new, rows_of(spec, micro_batch, new))
    loss(
        leaf,
        micro_batch.old,
        micro_batch.advantages,
        action_mask=micro_batch.mask,
        rollout_log_probs=micro_batch.sampled,
        batch_num_tokens=19.0,
    )[0].backward()
    (rows,) = tap.take()
    if formula == "none":
        assert any(row.departure > row.tolerance for row in rows)
        return
    for row in rows:
        assert row.departure <= row.tolerance
        assert row.weight in (None, pytest.approx(1 / 19, rel=row.tolerance))
    assert any(row.weight is not None for row in rows)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_unbiased_gradient_of_a_kl_estimator_is_what_the_adapter_takes_it_for(estimator: str) -> None:
    new, micro_batch = given()
    spec = spec_of(
        kl_placement="loss", kl_coefficient=0.3, kl_estimator=f"{estimator}_unbiased_gradient", kl_clamp=10.0
    )
    tap = Tap(measurable(spec.objective))
    leaf = tap.leaf(new, rows_of(spec, micro_batch, new))
    policy = PolicyLoss()(
        leaf, micro_batch.old, micro_batch.advantages, action_mask=micro_batch.mask, batch_num_tokens=19.0
    )[0]
    kl = compute_approx_kl(
        leaf, micro_batch.reference, log_probs_old=micro_batch.old, kl_estimator=estimator, unbiased_gradient=True
    )
    (policy + 0.3 * aggregate_loss(kl, micro_batch.mask, batch_num_tokens=19.0)).backward()
    (rows,) = tap.take()
    for row in rows:
        assert row.departure <= row.tolerance
        assert row.weight == pytest.approx(1 / 19, rel=row.tolerance)


def test_a_ratio_that_openrlhf_holds_has_no_gradient() -> None:
    new, micro_batch = given()
    micro_batch.old[1, 1] = new[1, 1] - 30  # a negative advantage, which clipping does not stop
    spec = spec_of()
    tap = Tap(spec.objective)
    leaf = tap.leaf(new, rows_of(spec, micro_batch, new))
    PolicyLoss()(leaf, micro_batch.old, micro_batch.advantages, action_mask=micro_batch.mask, batch_num_tokens=19.0)[
        0
    ].backward()
    (rows,) = tap.take()
    assert all(row.departure <= row.tolerance for row in rows)
