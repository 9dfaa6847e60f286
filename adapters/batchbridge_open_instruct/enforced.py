"""The canonical fields that a wrapped run of Open-Instruct brings about, whatever its settings say.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from batchbridge.kit.enforced_fields import EnforceableValues, also_off, given, one_of
from batchbridge_open_instruct.refusals import AGGREGATIONS

ENFORCED: EnforceableValues = {
    **dict.fromkeys(("staleness.maximum", "optimizer_step.rollout_shuffle", "order.seed"), given),
    **dict.fromkeys(("advantage.epsilon", "advantage.ddof"), given),
    **dict.fromkeys(("loss.policy.constant", "loss.policy.count_empty"), also_off),
    **dict.fromkeys(("advantage.minimum", "advantage.maximum", "objective.clip_low", "objective.clip_high"), also_off),
    "staleness.mode": one_of("sync", "bounded"),
    "order.prompt_shuffle": one_of("none", "epoch_permutation"),
    "order.last_rollout": one_of("drop", "wrap"),
    "order.last_optimizer_step": one_of("drop", "short", "pad"),
    "loss.policy.aggregation": one_of(*AGGREGATIONS),
    "advantage.baseline": one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": one_of("group", "group_others", "batch", "none"),
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, and `SETTABLE` and `REFUSALS` of
`runtime`. A step is always the whole rollout, so it has no remainder. Sizes, passes, the length of the run and old
log-probabilities are enforced only where the settings say them too."""
