"""Which canonical fields a wrapped run of EasyR1 brings about, whatever its configuration says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from batchbridge_easyr1.engine import AVERAGED
from batchbridge_verl.enforced import ENFORCED as SHARED

ENFORCED: Mapping[str, Callable[[object], bool]] = {
    **SHARED,
    "loss.policy.aggregation": lambda value: value in AVERAGED,
    "loss.policy.constant": lambda value: True,
    "loss.policy.count_empty": lambda value: True,
}
"""Canonical field to whether `attach` brings a value of it about: as with verl, whose plan, advantages and clips are
enforced by the same code, and the aggregations that `loss_avg_mode` has no word for. Source: `PLANNED`, and `SETTABLE`
and `REFUSALS` of `runtime`."""


def enforces(path: str, value: object) -> bool:
    """See `Adapter.enforces`."""
    return path in ENFORCED and ENFORCED[path](value)
