"""Which canonical fields a wrapped run of Open-Instruct brings about, whatever its settings say."""

from __future__ import annotations

from batchbridge.kit.enforced_fields import Promises, also_off, given, one_of
from batchbridge_open_instruct.engine import AGGREGATIONS

ENFORCED: Promises = {
    "staleness.mode": one_of("sync", "bounded"),
    "staleness.maximum": given,
    "optimizer_step.rollout_shuffle": given,
    "order.seed": given,
    "order.prompt_shuffle": one_of("none", "epoch_permutation"),
    "order.last_rollout": one_of("drop", "wrap"),
    "order.last_optimizer_step": one_of("drop", "short", "pad"),
    "loss.policy.aggregation": one_of(*AGGREGATIONS),
    "loss.policy.constant": also_off,
    "loss.policy.count_empty": also_off,
    "advantage.baseline": one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": one_of("group", "group_others", "batch", "none"),
    "advantage.epsilon": given,
    "advantage.ddof": given,
    "advantage.minimum": also_off,
    "advantage.maximum": also_off,
    "objective.clip_low": also_off,
    "objective.clip_high": also_off,
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, and `SETTABLE` and `REFUSALS` of
`runtime`. A step is always the whole rollout, so it has no remainder. Sizes, passes, the length of the run and old
log-probabilities are enforced only where the settings say them too."""
