"""The length of a run that has several: rollouts, epochs and optimizer steps end it, whichever comes first. Above
`plan`, which knows a run of one length alone.

Its own file: plans, steps and `wrap` use it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec

_NAMES = ("epochs", "rollouts", "optimizer_steps")
"""Names of the lengths; of two that end with the same step, the earlier one here may end inside it."""


def with_one_length(spec: Spec, dataset_size: int) -> Spec:
    """A specification with the length that ends first, of those that it has. Raises `PlanError` as `Plan` does."""
    lengths = spec.horizon.lengths
    if len(lengths) < 2:
        return spec
    # A remainder that is refused may lie behind the end of the run: it is looked at once the end is known.
    lenient = spec.order.last_optimizer_step == "error"
    counted = spec.replace(**{"order.last_optimizer_step": "short"}) if lenient else spec

    def alone(whole: Spec, name: str) -> Spec:
        others: dict[str, Any] = {other: None for other in _NAMES if other != name}
        return whole.replace(horizon=replace(whole.horizon, **others))

    def end(name: str) -> tuple[int, int]:
        plan = Plan(alone(counted, name), dataset_size)
        return plan.total_optimizer_steps, plan.total_rollouts

    return alone(spec, min((name for name in _NAMES if name in lengths), key=end))
