"""Changes that bring a specification nearer to what a framework can say, those with the least effect first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args, get_origin

from batchbridge.comparing.differences import UNIT_OF
from batchbridge.errors import Problem
from batchbridge.meaning.derived import derive
from batchbridge.meaning.fields import options
from batchbridge.meaning.spec import Aggregation, LossTerm, MicroBatch, Spec, field_type
from batchbridge.rules.nearest_numbers import divisors, nearest_numbers

ProblemTuple = tuple[Problem, ...]
"""A refusal."""

_SEEDS = 1 << 32
"""Most frameworks take seeds below this."""
_CRITICS_SPLIT = ("critic.completions_per_device", "critic.tokens_per_device")
WARM_UP = ("carried.warmup_steps", "carried.warmup_ratio")
LENGTHS = ("horizon.epochs", "horizon.rollouts", "horizon.optimizer_steps")
_STALENESS = ("staleness.mode", "staleness.maximum", "staleness.unit")
_NEARER: Mapping[tuple[str, Any], tuple[Any, ...]] = {
    ("objective.kl_placement", "reward"): ("loss",),
    ("objective.kl_placement", "loss"): ("reward",),
    ("order.last_rollout", "wrap"): ("short", "drop"),
    ("order.last_rollout", "pad"): ("short", "drop"),
    ("order.last_rollout", "short"): ("pad", "drop"),
    ("order.last_optimizer_step", "pad"): ("short",),
    ("order.last_optimizer_step", "short"): ("pad",),
    ("objective.old_logprobs", "sampler"): ("rollout_start",),
    ("objective.old_logprobs", "detached"): ("rollout_start",),
    ("rollout.group_filter", "mask_zero_variance"): ("none",),
    ("rollout.group_filter", "drop_zero_variance"): ("replace_zero_variance", "none"),
    ("rollout.group_filter", "replace_zero_variance"): ("drop_zero_variance", "none"),
    ("advantage.scale", "group_others"): ("group", "none"),
    ("objective.kl_estimator", "k1_with_score"): ("k3+", "k2", "k3"),
    ("objective.kl_estimator", "k2_with_score"): ("k3+", "k2", "k3"),
}
"""Values that are tried first where a framework lacks one: those that change the gradient least."""
_WORDS: Mapping[str, tuple[str, ...]] = {"objective.kl_estimator": ("k3", "k2", "k1"), "objective.surrogate": ("ppo",)}
"""Words to try in fields of free text."""


def named(problems: ProblemTuple) -> list[str]:
    """The canonical fields of problems, split fields first, then in the problems' order."""
    found = dict.fromkeys(path for problem in problems for path in problem.fields)
    known = [path for path in found if path in UNIT_OF or path in ("loss.kl", "loss.entropy")]
    return sorted(known, key=lambda path: not path.startswith(("micro_batch.", "topology.")))


def moves(
    current: Spec, named: Sequence[str], defaults: Spec | None, dataset_size: int | None, whole_rollouts: bool
) -> Iterator[dict[str, Any]]:
    """Changes to try for the fields `named`, those that keep the meaning first. whole_rollouts: as for `sizes`."""

    def about(*paths: str) -> bool:
        """Whether one of these fields is named, or one that begins so."""
        return any(path.startswith(paths) for path in named)

    if about("micro_batch.forward_"):
        yield dict.fromkeys(("micro_batch.forward_completions_per_device", "micro_batch.forward_tokens_per_device"))
    if about("micro_batch.cap"):
        yield {"micro_batch.cap": "soft" if current.micro_batch.cap == "hard" else "hard"}
    if about("micro_batch.tokens_per_device"):
        yield from _tokens(current, defaults)
    counted = about("optimizer_step.completions_per_step", "optimizer_step.parts_per_rollout")
    if counted and current.optimizer_step.completions_per_step is None:
        yield from _parts(current)
    if about("micro_batch.") and defaults is not None:
        yield from _usual_split(current, defaults)
    if about("topology.tensor_", "topology.pipeline_", "topology.context_"):
        yield {f"topology.{name}_parallel": 1 for name in ("tensor", "pipeline", "context")}
    if about("micro_batch.", "topology.", "optimizer_step.completions", "rollout.prompts", "rollout.completions"):
        yield from sizes(current, whole_rollouts)
    if about("micro_batch.", "topology.", "optimizer_step.completions"):
        yield from islice(splits(current, defaults), _SPLITS_TRIED)
    if about(*LENGTHS):
        yield from _lengths(current, defaults, dataset_size)
    if counted:
        yield from _parts(current)
    if defaults is not None and about(*_STALENESS):
        yield from _ages(defaults)
    if about(*_CRITICS_SPLIT):
        yield dict.fromkeys(_CRITICS_SPLIT)
        for name in ("completions_per_device", "tokens_per_device"):
            yield {**dict.fromkeys(_CRITICS_SPLIT), f"critic.{name}": getattr(current.micro_batch, name)}
    if about("critic."):
        yield {"critic.": None if current.critic is not None or defaults is None else defaults.critic}
    for path in named:
        if path.startswith(("topology.", "micro_batch.")) or path in LENGTHS:
            continue
        for term in ("loss.kl", "loss.entropy"):
            if path.startswith(term):
                yield {term: None}
                yield {term: current.loss.policy}
                yield from ({term: LossTerm(aggregation=mean)} for mean in _MEANS)
        if path in UNIT_OF:
            for value in _candidates(path, value_of(current, path), current, defaults):
                yield {path: value}


def cold(spec: Spec) -> bool:
    """Whether a specification says that there is no warm-up."""
    now = spec.carried.warmup_steps, spec.carried.warmup_ratio
    return not any(now) and now != (None, None)


def spelt(current: Spec, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The other spellings of no warm-up at all: frameworks count it in steps, or as a share of the run."""
    for path, other in (WARM_UP, WARM_UP[::-1]) if cold(current) else ():
        if path in fields:
            yield {path: None, other: 0.0}
            yield {path: 0.0, other: 0.0}


def preferred(ways: Iterable[Mapping[str, Any]], current: Spec, defaults: Spec | None) -> list[Mapping[str, Any]]:
    """Ways out in the order in which they change the gradient least, as far as that is known; else as they are."""

    def rank(way: Mapping[str, Any]) -> int:
        if len(way) != 1:
            return 0
        ((path, value),) = way.items()
        nearer = (*_NEARER.get((path, value_of(current, path)), ()), *_WORDS.get(path, ()))
        if value in nearer:
            return nearer.index(value)
        return len(nearer) + (defaults is None or value_of(defaults, path) != value)

    return sorted(ways, key=rank)


def sizes(spec: Spec, whole_rollouts: bool) -> Iterator[dict[str, Any]]:
    """Sizes that share out evenly over the devices, the nearest first: a micro-batch alone; an optimizer step; a
    rollout of whole steps. whole_rollouts: whether the framework shares out rollouts as well."""
    step, rollout = spec.optimizer_step.completions_per_step, spec.completions_per_rollout
    group, replicas = spec.rollout.completions_per_prompt, spec.topology.data_parallel_size
    prompts = spec.rollout.prompts_per_rollout
    if not step or not rollout or not group or not prompts or replicas.denominator != 1:
        return
    micro, devices = spec.micro_batch.completions_per_device or 1, int(replicas)

    def cut(share: int) -> dict[str, Any]:
        # Not above the present size: it is what fits into memory.
        fits = max(size for size in divisors(share) if size <= micro)
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


def _usual_split(spec: Spec, defaults: Spec) -> Iterator[dict[str, Any]]:
    """The target's own way to cut micro-batches, where that is another one than the present."""
    own, now = defaults.micro_batch, spec.micro_batch
    if (own.completions_per_device is None) != (now.completions_per_device is None):
        yield {"micro_batch.": own}


def splits(spec: Spec, defaults: Spec | None) -> Iterator[dict[str, Any]]:
    """Micro-batches of a fixed size that divide the device's share, the nearest to the present one first."""
    step, rollout = spec.optimizer_step.completions_per_step, spec.completions_per_rollout
    replicas = spec.topology.data_parallel_size
    if defaults is not None:
        yield {"micro_batch.": defaults.micro_batch}
    if step is None or replicas.denominator != 1:
        return
    present = spec.micro_batch.completions_per_device
    near = present or (defaults.micro_batch.completions_per_device if defaults is not None else None) or 1
    seen: set[int] = set()
    # First what divides the rollout too: many frameworks generate in the same portions.
    for completions in (math.gcd(step, rollout or step), step):
        share = completions // int(replicas) if completions % int(replicas) == 0 else 0
        sizes = [size for size in divisors(share) if size <= _LARGEST_MICRO_BATCH] if share else []
        # Not above the present size where that can be helped: it is what fits into memory.
        sizes.sort(key=lambda size: (size > near, abs(size - near)))
        for size in sizes[:_NEAREST]:
            if size not in seen:
                seen.add(size)
                yield {"micro_batch.": MicroBatch(completions_per_device=size)}


def _tokens(spec: Spec, defaults: Spec | None) -> Iterator[dict[str, Any]]:
    """A token budget that holds the fixed micro-batch at its longest."""
    if defaults is None:
        return
    prompt = spec.carried.max_prompt_tokens or defaults.carried.max_prompt_tokens
    completion = spec.carried.max_completion_tokens or defaults.carried.max_completion_tokens
    total = spec.carried.max_total_tokens
    if total is not None or (prompt is not None and completion is not None):
        carried = dataclasses.replace(spec.carried, max_prompt_tokens=prompt, max_completion_tokens=completion)
        tokens = (carried.longest_tokens or 1) * (spec.micro_batch.completions_per_device or 1)
        yield {"micro_batch.": MicroBatch(tokens_per_device=tokens, cap=defaults.micro_batch.cap)}


_LARGEST_MICRO_BATCH = 4096
_NEAREST = 6
_SPLITS_TRIED = 3
_MEANS: tuple[Aggregation, ...] = ("token_mean", "sequence_mean")
"""Aggregations that frameworks use for a term that has weights of its own."""


def _parts(spec: Spec) -> Iterator[dict[str, Any]]:
    """Steps of a number of completions as parts of a rollout, and back: as many steps, with other members."""
    step, rollout = spec.optimizer_step, spec.completions_per_rollout
    if rollout and step.completions_per_step and rollout % step.completions_per_step == 0:
        parts = rollout // step.completions_per_step
        yield {"optimizer_step.completions_per_step": None, "optimizer_step.parts_per_rollout": parts}
    if rollout and step.parts_per_rollout:
        completions, group = max(rollout // step.parts_per_rollout, 1), spec.rollout.completions_per_prompt or 1
        found = completions, max(completions // group, 1) * group  # some count whole groups
        for size in dict.fromkeys(found if rollout % step.parts_per_rollout == 0 else reversed(found)):
            yield {"optimizer_step.parts_per_rollout": None, "optimizer_step.completions_per_step": size}


def _ages(defaults: Spec) -> Iterator[dict[str, Any]]:
    """One step old, as it is or as the target's own staleness is: the nearest to none. Two. Then the target's own."""
    own = values_of(defaults, _STALENESS)
    for ahead in (1, 2):
        yield {"staleness.maximum": ahead}
        if defaults.staleness.mode != "sync":
            yield {**own, "staleness.maximum": ahead}
    yield own
    yield {"staleness.mode": "sync", "staleness.maximum": 0}


def _lengths(spec: Spec, defaults: Spec | None, dataset_size: int | None) -> Iterator[dict[str, Any]]:
    """The same length of the run: one of several that ends first, or another unit, where it follows. Then each of
    several alone, and the target's default length."""
    derived = derive(spec, dataset_size)
    steps, rollouts = derived["total_optimizer_steps"], derived["total_rollouts"]
    per_rollout = derived["optimizer_steps_per_rollout"]
    warmup = 0 if spec.critic is None else spec.critic.warmup_rollouts
    if per_rollout:
        steps = max(rollouts - warmup, 0) * per_rollout if steps is None and rollouts is not None else steps
        rollouts = max(round(steps / per_rollout), 1) + warmup if rollouts is None and steps is not None else rollouts
    per_epoch = derived["optimizer_steps_per_epoch"]
    found: dict[str, Any] = {
        "horizon.rollouts": rollouts,
        "horizon.optimizer_steps": int(steps) if steps is not None and steps == int(steps) else None,
        "horizon.epochs": None if steps is None or not per_epoch else (steps + warmup * (per_rollout or 0)) / per_epoch,
    }
    given = {f"horizon.{name}": length for name, length in spec.horizon.lengths.items()}
    alone: list[dict[str, Any]] = [{**dict.fromkeys(LENGTHS), path: given[path]} for path in given if len(given) > 1]
    for one in alone:
        if steps is not None and derive(spec.replace(**one), dataset_size)["total_optimizer_steps"] == steps:
            yield one
    for path, value in found.items():
        if value and given.keys() != {path}:
            yield {**dict.fromkeys(LENGTHS), path: value}
    yield from alone
    if defaults is not None:
        yield values_of(defaults, LENGTHS)


def _candidates(path: str, value: Any, spec: Spec, defaults: Spec | None) -> Iterator[Any]:
    """Values to try instead of `value`, each once, the nearest first."""
    found: list[Any] = list(_NEARER.get((path, value), ()))
    found += _WORDS.get(path, ())
    if path == "order.seed" and isinstance(value, int) and not 0 <= value < _SEEDS:
        found.append(value % _SEEDS)
    if path == "open_terms":  # as many as the target names alike
        found += [(*value[:place], *value[place + 1 :]) for place in range(len(value))]
    if path in ("optimizer_step.completions_per_step", "rollout.prompts_per_rollout") and isinstance(value, int):
        found += _near_sizes(path, value, spec)
    if defaults is not None:
        found.append(value_of(defaults, path))
    for option in options(field_type(path)):
        found += get_args(option) if get_origin(option) is Literal else _OF_TYPE.get(option, ())
    for candidate in dict.fromkeys(found):
        if candidate != value:
            yield candidate


def _near_sizes(path: str, value: int, spec: Spec) -> list[int]:
    """The nearest sizes that share out evenly: over devices and groups, or in whole optimizer steps."""
    group, replicas = spec.rollout.completions_per_prompt, math.ceil(spec.topology.data_parallel_size)
    step, rollout = spec.optimizer_step.completions_per_step, spec.completions_per_rollout
    whole: list[int] = []
    if path == "rollout.prompts_per_rollout":
        units = [step // math.gcd(step, group)] if step else []
        units += [math.lcm(unit, replicas) for unit in units]  # some hand whole prompts to devices
        whole, rollout = units, None  # a rollout of one optimizer step: all that some frameworks have
    else:
        micro = spec.micro_batch.completions_per_device or 1
        units = [replicas, math.lcm(replicas, group), math.lcm(replicas * micro, group)]
    found = {near for unit in units if unit > 0 for near in (value // unit * unit, -(-value // unit) * unit)}
    found |= set(whole)
    # Half as far, where that keeps a rollout's number of optimizer steps whole.
    return sorted(found - {0}, key=lambda near: abs(near - value) * (1 if rollout and rollout % near else 0.5))


_OF_TYPE: Mapping[Any, tuple[Any, ...]] = {type(None): (None,), bool: (True, False)}


def value_of(spec: Spec, path: str) -> Any:
    value: Any = spec
    for name in filter(None, path.split(".")):
        value = getattr(value, name, None)
    return value


def values_of(spec: Spec, paths: Iterable[str]) -> dict[str, Any]:
    return {path: value_of(spec, path) for path in paths}


def replaced(spec: Spec, changes: Mapping[str, Any]) -> Spec | None:
    """`spec` with `changes`; None where a term of the loss is to be changed that is not there."""
    try:
        return spec.replace(**changes)
    except (TypeError, AttributeError):
        return None
