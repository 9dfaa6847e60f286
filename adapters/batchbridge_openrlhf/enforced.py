"""Which canonical fields a wrapped run of OpenRLHF brings about, whatever its options say."""

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
    "optimizer_step.step_may_span": _one_of("none"),
    "order.seed": _given,
    "order.prompt_shuffle": _one_of("none", "epoch_permutation"),
    "order.last_rollout": _one_of("drop", "short"),
    "order.last_optimizer_step": _one_of("drop", "short"),
    "horizon.rollouts": _also_off,
    "horizon.epochs": _also_off,
    "horizon.optimizer_steps": _also_off,
    "horizon.lr_tick": _given,
    "loss.policy.aggregation": _one_of("token_mean", "sequence_mean"),
    "loss.policy.count_empty": _given,
    "advantage.baseline": _one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": _one_of("group", "none"),
    "advantage.epsilon": _given,
    "advantage.ddof": _given,
    "advantage.clip": _also_off,
    "objective.clip_low": _also_off,
    "objective.clip_high": _also_off,
    "objective.dual_clip": _also_off,
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, `SETTABLE` and `REFUSALS` of
`runtime`. What is taken over only where the options say it too is not here: a batch-wide scale of advantages, a KL
penalty in another place, a group size. A run whose KL penalty is inside of the advantages keeps the trainer's rule for
them, or is refused (`advantage_with_kl`)."""


def enforces(path: str, value: object) -> bool:
    """See `Adapter.enforces`."""
    return path in ENFORCED and ENFORCED[path](value)
