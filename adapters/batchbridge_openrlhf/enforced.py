"""Which canonical fields a wrapped run of OpenRLHF brings about, whatever its options say."""

from __future__ import annotations

from batchbridge.kit.enforced_fields import Promises, also_off, given, one_of

ENFORCED: Promises = {
    "rollout.prompts_per_rollout": given,
    "optimizer_step.completions_per_step": given,
    "optimizer_step.passes_per_rollout": given,
    "optimizer_step.rollout_shuffle": given,
    "optimizer_step.step_may_span": one_of("none"),
    "order.seed": given,
    "order.prompt_shuffle": one_of("none", "epoch_permutation"),
    "order.last_rollout": one_of("drop", "short"),
    "order.last_optimizer_step": one_of("drop", "short"),
    "horizon.rollouts": also_off,
    "horizon.epochs": also_off,
    "horizon.optimizer_steps": also_off,
    "horizon.lr_tick": given,
    "loss.policy.aggregation": one_of("token_mean", "sequence_mean"),
    "loss.policy.count_empty": given,
    "advantage.baseline": one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": one_of("group", "group_others", "none"),
    "advantage.epsilon": given,
    "advantage.ddof": given,
    "advantage.minimum": also_off,
    "advantage.maximum": also_off,
    "objective.clip_low": also_off,
    "objective.clip_high": also_off,
    "objective.dual_clip": also_off,
    "critic.rollout_shuffle": given,
    "critic.value_clip": also_off,
    "critic.warmup_rollouts": given,
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, `SETTABLE` and `REFUSALS` of
`runtime`. What is taken over only where the options say it too is not here: a batch-wide scale of advantages, a KL
penalty in another place, a group size. A run whose KL penalty is inside of the advantages keeps the trainer's rule for
them, or is refused (`advantage_with_kl`)."""
