"""Tables of what a wrapped run brings about where its configuration cannot say it, for `Adapter.enforces`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Promises = Mapping[str, Callable[[object], bool]]
"""Canonical field to whether a value of it is brought about."""


def given(value: object) -> bool:
    """Any value; None says nothing, and nothing is promised for it."""
    return value is not None


def also_off(value: object) -> bool:
    """Any value, and None: off, or said by another field."""
    return True


def one_of(*values: object) -> Callable[[object], bool]:
    """These values."""
    return lambda value: value in values


def kept(promises: Promises, path: str, value: object) -> bool:
    """Whether `promises` bring `value` of the field `path` about."""
    return path in promises and promises[path](value)


PLANNED_FIELDS: Promises = {
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
    "advantage.scale": one_of("group", "none"),
    "advantage.epsilon": given,
    "advantage.ddof": given,
    "advantage.clip": also_off,
    "objective.old_logprobs": one_of("detached", "rollout_start"),
    "objective.clip_low": also_off,
    "objective.clip_high": also_off,
    "objective.dual_clip": also_off,
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, `SETTABLE` and `REFUSALS` of
`runtime`. What is taken over only where the configuration says it too is not here: a batch-wide scale of advantages, a
KL penalty in another place, a group size of the V0 trainer."""
