"""`wrap(trainer, like=...)`: the trainer does what another configuration means, against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge import CannotAttach, Spec, read, unwrap, wrap
from batchbridge.ledger import read_steps
from batchbridge.meaning.spec import Advantage, Horizon
from batchbridge_trl.releases import has_loss
from batchbridge_trl.testing import Captured, gradient_errors


def own_spec(built: Any) -> Spec:
    spec: Spec = wrap(built, mode="observe").batchbridge.request.spec
    unwrap(built)
    return spec


def train(built: Any) -> Captured:
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    return captured


LIKE = {
    "another size of rollout and step": {
        "rollout.prompts_per_rollout": 3,
        "optimizer_step.completions_per_step": 5,
    },
    "another group": {"rollout.completions_per_prompt": 3, "optimizer_step.completions_per_step": 6},
    "a short last rollout": {"rollout.prompts_per_rollout": 5, "order.last_rollout": "short"},
    "rollouts that wrap around epochs": {
        "rollout.prompts_per_rollout": 4,
        "order.last_rollout": "wrap",
        "optimizer_step.step_may_span": "none",
        "horizon": Horizon(rollouts=4),
    },
    "passes that reshuffle groups": {
        "optimizer_step.passes_per_rollout": 2,
        "optimizer_step.rollout_shuffle": "groups",
        "optimizer_step.step_may_span": "none",
        "objective.old_logprobs": "rollout_start",
    },
    "the first of several lengths": {"horizon": Horizon(epochs=2, rollouts=40, optimizer_steps=5)},
    "sequence mean": {"loss.policy.aggregation": "sequence_mean"},
    "sequence sum over a constant": {
        "loss.policy.aggregation": "sequence_sum_over_constant",
        "loss.policy.constant": 100,
    },
    "plain sums": {"loss.policy.aggregation": "token_sum"},
    "biased deviation": {"advantage": Advantage(epsilon=1e-8, ddof=0)},
    "leave one out": {"advantage": Advantage(baseline="leave_one_out", scale="none", epsilon=None, ddof=None)},
    "the deviation of the others": {
        "advantage": Advantage(baseline="leave_one_out", scale="group_others", epsilon=1e-6, ddof=1, maximum=2.0)
    },
    "clipped advantages over the batch": {
        "advantage": Advantage(scale="batch", epsilon=1e-6, ddof=1, minimum=-0.5, maximum=0.5)
    },
    "another surrogate, summed by completion": {
        "objective.surrogate": "cispo",
        "objective.clip_low": None,
        "objective.clip_high": 0.05,
        "objective.old_logprobs": "rollout_start",
        "loss.policy.aggregation": "sequence_sum",
        "optimizer_step.passes_per_rollout": 2,
    },
    "a lower bound of the ratio and a dual clip": {
        "optimizer_step.passes_per_rollout": 3,
        "objective.clip_low": 0.05,
        "objective.clip_high": 0.02,
        "objective.dual_clip": 1.1,
        "objective.old_logprobs": "rollout_start",
    },
}


@pytest.mark.parametrize("name", LIKE if has_loss("cispo") else [name for name in LIKE if "surrogate" not in name])
def test_the_gradient_is_that_of_the_requested_spec(trainer: Callable[..., Any], name: str) -> None:
    built = trainer(
        prompts=9, num_train_epochs=2, learning_rate=0.05, per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    wrap(built, like=own_spec(built).replace(**LIKE[name]))
    plan = built.batchbridge.plan
    captured = train(built)
    assert built.state.global_step == plan.total_optimizer_steps
    found = gradient_errors(captured, plan.spec, plan=plan, steps=6)
    assert all(each.error <= each.bar for each in found), found


def test_negative_control_the_trainers_own_spec_is_not_the_requested_one(trainer: Callable[..., Any]) -> None:
    built = trainer(num_train_epochs=1, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    spec = own_spec(built)
    captured = train(wrap(built, like=spec.replace(**LIKE["sequence mean"])))
    found = gradient_errors(captured, spec, plan=built.batchbridge.plan, steps=2)
    assert all(each.error > 10 * each.bar for each in found), found


def test_the_learning_rate_can_tick_once_per_rollout(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = trainer(num_train_epochs=1, lr_scheduler_type="linear", generation_batch_size=16, prompts=8)
    spec = own_spec(built).replace(**{"horizon.lr_tick": "rollout", "optimizer_step.step_may_span": "none"})
    wrap(built, like=spec, ledger=tmp_path / "ledger").train()
    rates = [record["learning_rate"] for record in read_steps(tmp_path / "ledger")]
    # 8 prompts in 2 rollouts of 2 steps: two ticks, so the second rollout has half the rate
    assert rates == pytest.approx([1e-2, 1e-2, 5e-3, 5e-3])


def test_like_takes_a_recipe(trainer: Callable[..., Any], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 3\nnum_generations: 6\nloss_type: grpo\n"
        "max_completion_length: 24\nmax_steps: 2\nseed: 7\nbeta: 0.0\n"
    )
    built = wrap(trainer(), like=recipe)
    plan = built.batchbridge.plan
    assert (plan.completions_per_step, plan.completions_per_prompt) == (12, 6)
    assert plan.spec == read(recipe, framework="trl", world_size=1).spec.replace(
        **{"micro_batch.completions_per_device": 8}
    )
    captured = train(built)
    found = gradient_errors(captured, plan.spec, plan=plan)
    assert len(found) == 2
    assert all(each.error <= each.bar for each in found), found


def test_like_refuses_an_invalid_recipe_with_its_findings(trainer: Callable[..., Any], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("per_device_train_batch_size: 1\nnum_generations: 8\nmax_completion_length: 24\n")
    with pytest.raises(CannotAttach, match="like: BB-TRL-"):
        wrap(trainer(), like=recipe)
