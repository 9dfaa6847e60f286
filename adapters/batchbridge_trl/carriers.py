"""The loss type of TRL that computes a specification's loss: what a wrapped run sets, whatever its own.

Its own file: the engine and the refusals both use it.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Spec
from batchbridge_trl.meaning import loss_types

SUMMED = ("token_mean", "token_sum", "sequence_sum", "sequence_sum_over_constant")
"""Aggregations that are a plain sum over tokens, times one factor per optimizer step."""
CARRIERS: Mapping[tuple[str | None, str], tuple[str, ...]] = {
    # (surrogate, aggregation) -> the loss types whose native code computes that surrogate and, up to one factor, that
    # aggregation; the first that a release has is taken. grpo, bnpo, dr_grpo, dapo and luspo share one surrogate; the
    # local loss of dapo, cispo, vespo and dr_grpo is a plain sum over tokens, while luspo's runs over padding before
    # 1.10. Source: trl 0.18.0 to 1.16.0, GRPOTrainer._compute_loss.
    **{("ppo", aggregation): ("dapo", "dr_grpo") for aggregation in SUMMED},
    **{("cispo", aggregation): ("cispo",) for aggregation in SUMMED},
    **{("vespo", aggregation): ("vespo",) for aggregation in SUMMED},
    ("ppo", "sequence_mean"): ("grpo",),
    ("sapo", "sequence_mean"): ("sapo",),
}


def carrier(spec: Spec, release: str) -> str | None:
    """The loss_type that enforces the spec on a release of TRL; None where it has none for it."""
    fitting = CARRIERS.get((spec.objective.surrogate, spec.loss.policy.aggregation), ())
    return next((name for name in fitting if name in loss_types(release)), None)
