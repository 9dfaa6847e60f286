"""The canonical fields that a wrapped run of OpenRLHF brings about, whatever its options say.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from batchbridge.kit.enforced_fields import PLANNED_FIELDS, EnforceableValues, also_off, given, one_of

ENFORCED: EnforceableValues = {
    **{path: promise for path, promise in PLANNED_FIELDS.items() if path != "objective.old_logprobs"},
    "optimizer_step.step_may_span": one_of("none"),
    "order.last_rollout": one_of("drop", "short"),
    "order.last_optimizer_step": one_of("drop", "short"),
    "loss.policy.aggregation": one_of("token_mean", "sequence_mean"),
    "loss.policy.count_empty": given,
    "critic.rollout_shuffle": given,
    "critic.value_clip": also_off,
    "critic.warmup_rollouts": given,
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, `SETTABLE` and `REFUSALS` of
`runtime`. What is taken over only where the options say it too is not here: a batch-wide scale of advantages, a KL
penalty in another place, a group size. A run whose KL penalty is inside of the advantages keeps the trainer's rule for
them, or is refused (`advantage_with_kl`)."""
