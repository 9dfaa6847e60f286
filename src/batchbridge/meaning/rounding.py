"""The differences that float32, in which frameworks compute, makes in advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchbridge.meaning.spec import Advantage

SINGLE = 2.0**-23
"""The relative step of float32."""


def float32_rooms(
    groups: Sequence[Sequence[float]], advantages: Sequence[Sequence[float]], rule: Advantage
) -> list[float]:
    """The largest difference that float32, in which frameworks compute, makes in each group's `advantages` by `rule`:
    in the sum of its rewards, and in what divides them."""
    alike = len({reward for group in groups for reward in group if not math.isnan(reward)}) < 2
    divided = rule.scale in ("group", "group_others") or (rule.scale == "batch" and alike)
    rooms = []
    for rewards, mine in zip(groups, advantages, strict=True):
        known = [one for one in rewards if not math.isnan(one)]
        largest, steepest = max(map(abs, known), default=0.0), max(map(abs, mine), default=0.0)
        spread = max(known, default=0.0) - min(known, default=0.0)
        if steepest and spread:
            rooms.append(64 * SINGLE * (steepest + (1.0 + steepest) * largest * steepest / spread))
        else:  # equal rewards differ from their mean by the rounding of one sum, and that is divided, too
            rooms.append(8 * SINGLE * largest / (rule.epsilon if divided and rule.epsilon else 1.0))
    return rooms
