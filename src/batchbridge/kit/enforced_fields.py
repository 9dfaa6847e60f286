"""Tables of what a wrapped run brings about where its configuration cannot say it, for `Adapter.enforces`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

EnforceableValues = Mapping[str, Callable[[object], bool]]
"""Canonical field to whether a value of it is brought about."""


def given(value: object) -> bool:
    """Any value; None says nothing, and nothing is promised for it."""
    return value is not None


def also_off(value: object) -> bool:
    """Any value, and None: off, or said by another field."""
    return True


def one_of(*values: object) -> Callable[[object], bool]:
    """The condition that a value is one of these."""
    return lambda value: value in values


PLANNED_FIELDS: EnforceableValues = {
    "rollout.prompts_per_rollout": given,
    "optimizer_step.completions_per_step": given,
    "optimizer_step.passes_per_rollout": given,
    "optimizer_step.rollout_shuffle": given,
    "order.seed": given,
    "order.prompt_shuffle": one_of("none", "epoch_permutation"),
    "order.last_rollout": one_of("drop", "short", "pad", "wrap"),
    "order.last_optimizer_step": one_of("drop", "short", "pad"),
    "horizon.rollouts": also_off,
    "horizon.epochs": also_off,
    "horizon.optimizer_steps": also_off,
    "horizon.lr_tick": given,
    "advantage.baseline": one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": one_of("group", "group_others", "none"),
    "advantage.epsilon": given,
    "advantage.ddof": given,
    "advantage.minimum": also_off,
    "advantage.maximum": also_off,
    "objective.old_logprobs": one_of("detached", "rollout_start"),
    "objective.clip_low": also_off,
    "objective.clip_high": also_off,
    "objective.dual_clip": also_off,
}
"""Fields that a driver that follows the plan and writes advantages itself brings about."""
