"""A user's module that has a hand in the optimizer of a whole run of verl, from its third step on, which is the second
rollout's first: `import verl` imports it in every process.

`BATCHBRIDGE_MEDDLES`: `rate` multiplies the learning rate by 1.5; `gradient` doubles the largest weight's gradient.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

ALONE = 2
"""Updates that nothing has a hand in."""
_updates: Counter[int] = Counter()


def meddle(optimizer: Any, *_: Any) -> None:
    """Has a hand in an update: torch calls it before each optimizer's step."""
    _updates[id(optimizer)] += 1
    if _updates[id(optimizer)] <= ALONE:
        return
    weights = [one for group in optimizer.param_groups for one in group["params"]]
    if os.environ["BATCHBRIDGE_MEDDLES"] == "gradient":
        max(weights, key=lambda one: one.numel()).grad.mul_(2.0)
    else:
        for group in optimizer.param_groups:
            group["lr"] *= 1.5


if os.environ.get("BATCHBRIDGE_MEDDLES"):
    register_optimizer_step_pre_hook(meddle)
