"""Sizes that share out evenly over devices: the ways out of a refusal of sizes, as changes of canonical fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from batchbridge.meaning.spec import MicroBatch, Spec
from batchbridge.rules.nearest_numbers import divisors, nearest_numbers


def even_cuts(spec: Spec) -> Iterator[dict[str, Any]]:
    """The micro-batch of a fixed size that every device's share of a step consists of, nearest to the present one."""
    step, rollout, replicas = (
        spec.optimizer_step.completions_per_step,
        spec.completions_per_rollout,
        spec.topology.data_parallel_size,
    )
    if not step or replicas.denominator != 1:
        return
    for completions in dict.fromkeys((math.gcd(step, rollout or step), step)):  # some generate in the same portions
        if completions % replicas == 0:
            size = near_divisor(completions // int(replicas), spec.micro_batch.completions_per_device or 1)
            yield {"micro_batch.": MicroBatch(completions_per_device=size)}


def near_divisor(share: int, micro: int) -> int:
    """The largest micro-batch that divides a device's share and is not above the present one, as memory may not hold
    more."""
    return max(size for size in divisors(share) if size <= micro)


def near_sequences(tokens: int, longest: int, spec: Spec) -> int:
    """The number of sequences of `longest` tokens, nearest to a device's budget of `tokens`, that divides what each
    device trains on."""
    shared, devices = spec.topology.context_parallel, spec.topology.data_parallel_size
    step, rollout = spec.optimizer_step.completions_per_step or 0, spec.completions_per_rollout or 0
    share = math.gcd(step, rollout) // devices
    return min(divisors(share) if share >= 1 else [1], key=lambda size: abs(size * longest - tokens * shared))


def even_sizes(spec: Spec, whole_rollouts: bool) -> Iterator[dict[str, Any]]:
    """Sizes that share out evenly over the devices, the nearest first: a micro-batch alone; an optimizer step; a
    rollout of whole steps. whole_rollouts: whether the framework shares out rollouts as well."""
    step, rollout = spec.optimizer_step.completions_per_step, spec.completions_per_rollout
    group, replicas = spec.rollout.completions_per_prompt, spec.topology.data_parallel_size
    prompts = spec.rollout.prompts_per_rollout
    if not step or not rollout or not group or not prompts or replicas.denominator != 1:
        return
    micro, devices = spec.micro_batch.completions_per_device or 1, int(replicas)

    def cut(share: int) -> dict[str, Any]:
        fits = near_divisor(share, micro)
        fixed = spec.micro_batch.completions_per_device is not None and fits != micro
        return {"micro_batch.": MicroBatch(completions_per_device=fits)} if fixed else {}

    def of_step(size: int) -> dict[str, Any]:
        return {"optimizer_step.completions_per_step": size, **cut(size // devices)}

    if math.gcd(step, rollout) % devices == 0 and (changes := cut(math.gcd(step, rollout) // devices)):
        yield changes
    if step % devices:
        in_groups = nearest_numbers(step, multiple_of=math.lcm(devices, group), divides=rollout)
        plain = [] if whole_rollouts else nearest_numbers(step, multiple_of=devices)
        yield from map(of_step, [*_nearest_first(step, in_groups), *_nearest_first(step, plain)])
    elif whole_rollouts:
        unit = step // math.gcd(step, group)
        near = [size for one in (unit, math.lcm(unit, devices)) for size in nearest_numbers(prompts, multiple_of=one)]
        for size in near if prompts % math.lcm(unit, devices) else ():
            yield {"rollout.prompts_per_rollout": size}
    steps = rollout // step if rollout % step == 0 else 1
    if prompts % (steps * devices):
        units = [steps * devices // math.gcd(devices, group), steps * devices]  # some hand whole prompts to devices
        near = [size for unit in units for size in nearest_numbers(prompts, multiple_of=unit)]
        for size in _nearest_first(prompts, near):
            yield {"rollout.prompts_per_rollout": size, **of_step(size * group // steps)}


def _nearest_first(value: int, sizes: Iterable[int]) -> list[int]:
    return sorted({*sizes}, key=lambda size: (abs(size - value), size))
