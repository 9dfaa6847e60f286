"""The numbers that follow from a spec, always shown beside it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from batchbridge.errors import PlanError
from batchbridge.meaning.spec import Spec

UNITS = {
    "completions_per_rollout": "completions",
    "completions_per_step": "completions",
    "completions_per_device_per_step": "completions per device",
    "prompts_per_step": "prompts",
    "optimizer_steps_per_rollout": "optimizer steps",
    "gradient_accumulation_steps": "micro-batches",
    "policy_lag_steps": "optimizer steps",
    "rollouts_per_epoch": "rollouts",
    "optimizer_steps_per_epoch": "optimizer steps",
    "total_rollouts": "rollouts",
    "total_optimizer_steps": "optimizer steps",
    "prompts_dropped_per_epoch": "prompts",
}
"""Every derived name with its unit, in the order in which they are shown."""


def derive(spec: Spec, dataset_size: int | None = None) -> dict[str, int | float | None]:
    """Every name of `UNITS`. Whole numbers are ints; fractional ones floats; None where the spec or a missing
    `dataset_size` (prompts) leaves it open. `policy_lag_steps` is the largest age, inside one rollout, of the weights
    that generated a completion when it is trained on."""
    completions_per_rollout = spec.completions_per_rollout
    completions_per_step = spec.optimizer_step.completions_per_step
    group, passes = spec.rollout.completions_per_prompt, spec.optimizer_step.passes_per_rollout
    topology, micro = spec.topology, spec.micro_batch.completions_per_device
    sizes = (topology.world_size, topology.tensor_parallel, topology.pipeline_parallel, topology.context_parallel)
    replicas = topology.data_parallel_size if min(sizes) >= 1 else None  # BB101 reports the rest
    values: dict[str, Any] = dict.fromkeys(UNITS)
    values["completions_per_rollout"] = completions_per_rollout
    values["completions_per_step"] = completions_per_step
    if completions_per_step:
        per_device = Fraction(completions_per_step) / replicas if replicas else None
        values["completions_per_device_per_step"] = per_device
        values["prompts_per_step"] = Fraction(completions_per_step, group) if group else None
        values["gradient_accumulation_steps"] = per_device / micro if per_device and micro else None
        if completions_per_rollout is not None:
            steps = Fraction(passes * completions_per_rollout, completions_per_step)
            values["optimizer_steps_per_rollout"] = steps
            values["policy_lag_steps"] = max(-(-steps.numerator // steps.denominator) - 1, 0)
    plan = None
    if dataset_size is not None:
        from batchbridge.meaning.candidates import plan_of  # without a number of prompts nothing is planned

        try:
            # Every key orders as many prompts: what is counted here does not wait for a seed.
            plan = plan_of(spec if spec.order.seed is not None else spec.replace(**{"order.seed": 0}), dataset_size)
        except PlanError:
            plan = None
    if plan is not None:
        values["rollouts_per_epoch"] = plan.rollouts_per_epoch
        values["optimizer_steps_per_epoch"] = plan.optimizer_steps_per_epoch
        # Where the run fills its rollouts, the plan drops nothing; what the framework's loader leaves out is not in it.
        rest = plan.dataset_size % plan.prompts_per_rollout
        open_end = plan.members_are == "place" and rest and spec.order.last_rollout == "drop"
        values["prompts_dropped_per_epoch"] = None if open_end else plan.prompts_dropped_per_epoch
        for name in ("total_optimizer_steps", "total_rollouts"):
            try:
                values[name] = getattr(plan, name)
            except PlanError:
                values[name] = None
    elif len(spec.horizon.lengths) == 1:  # of several, the prompts decide which ends first
        values["total_optimizer_steps"] = spec.horizon.optimizer_steps
        values["total_rollouts"] = spec.horizon.rollouts
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> int | float | None:
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    return value  # type: ignore[no-any-return]  # int or None by construction
