"""Which canonical fields a wrapped run of verl brings about, whatever its configuration says."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _given(value: object) -> bool:
    return value is not None


def _also_off(value: object) -> bool:
    return True


def _one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


ENFORCED: Mapping[str, Callable[[object], bool]] = {
    "rollout.prompts_per_rollout": _given,
    "optimizer_step.completions_per_step": _given,
    "optimizer_step.passes_per_rollout": _given,
    "optimizer_step.rollout_shuffle": _given,
    "order.seed": _given,
    "order.prompt_shuffle": _one_of("none", "epoch_permutation"),
    "order.last_rollout": _one_of("drop", "short", "pad", "wrap"),
    "order.last_optimizer_step": _one_of("drop", "short", "pad"),
    "horizon.rollouts": _also_off,
    "horizon.epochs": _also_off,
    "horizon.optimizer_steps": _also_off,
    "horizon.lr_tick": _given,
    "advantage.baseline": _one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": _one_of("group", "none"),
    "advantage.epsilon": _given,
    "advantage.ddof": _given,
    "advantage.clip": _also_off,
    "objective.old_logprobs": _one_of("detached", "rollout_start"),
    "objective.clip_low": _also_off,
    "objective.clip_high": _also_off,
    "objective.dual_clip": _also_off,
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, `SETTABLE` and `REFUSALS` of
`runtime`. What is taken over only where the configuration says it too is not here: a batch-wide scale of advantages, a
KL penalty in another place, a group size of the V0 trainer."""


def enforces(path: str, value: object) -> bool:
    """See `Adapter.enforces`."""
    return path in ENFORCED and ENFORCED[path](value)
