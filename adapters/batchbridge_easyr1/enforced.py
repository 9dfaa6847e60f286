"""The canonical fields that a wrapped run of EasyR1 brings about, whatever its configuration says.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from batchbridge.kit.enforced_fields import PLANNED_FIELDS as SHARED
from batchbridge.kit.enforced_fields import EnforceableValues, also_off, one_of

AVERAGED = ("token_mean", "token_sum", "sequence_mean", "sequence_sum", "sequence_sum_over_constant")
"""Aggregations whose weights a completion's own length and the step's denominators decide."""
ENFORCED: EnforceableValues = {
    **SHARED,
    "loss.policy.aggregation": one_of(*AVERAGED),
    "loss.policy.constant": also_off,
    "loss.policy.count_empty": also_off,
}
"""Canonical field to whether `attach` brings a value of it about: as with verl, whose plan, advantages and clips are
enforced by the same code, and the aggregations that `loss_avg_mode` has no word for. Source: `PLANNED`, and `SETTABLE`
and `REFUSALS` of `runtime`."""
