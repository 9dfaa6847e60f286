"""The same run in other words, whatever the framework: no warm-up in either unit, a run's length in the unit that is
asked for, an optimizer step as a part of its rollout; and ways out by how much they change.

A refusal's own data (`Problem.nearest`) decides everything else. A length is not in it: what an epoch has in steps
follows from the dataset's size, which no adapter is given when it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from batchbridge.comparing.differences import UNIT_OF
from batchbridge.errors import Problem
from batchbridge.meaning.derived import derive
from batchbridge.meaning.spec import Spec

ProblemTuple = tuple[Problem, ...]
"""A refusal."""

WARM_UP = ("carried.warmup_steps", "carried.warmup_ratio")
LENGTHS = ("horizon.epochs", "horizon.rollouts", "horizon.optimizer_steps")
_OF_STEPS = ("optimizer_step.completions_per_step", "optimizer_step.parts_per_rollout")
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
_EFFECT: Mapping[str, int] = {
    "optimizer_step.completions_per_step": 1,
    "rollout.prompts_per_rollout": 1,
    "topology.world_size": 2,
    "rollout.group_filter": 2,
    "rollout.completions_per_prompt": 3,
}
"""The effect of a size or filter on what is trained: a cut into micro-batches has none, the group the most."""
_WORDS: Mapping[str, tuple[str, ...]] = {"objective.kl_estimator": ("k3", "k2", "k1"), "objective.surrogate": ("ppo",)}
"""Words that stand first among those of other kinds."""


def named(problems: ProblemTuple) -> list[str]:
    """The canonical fields of problems, split fields first, then in the problems' order."""
    found = dict.fromkeys(path for problem in problems for path in problem.fields)
    known = [path for path in found if path in UNIT_OF or path in ("loss.kl", "loss.entropy")]
    return sorted(known, key=lambda path: not path.startswith(("micro_batch.", "topology.")))


def in_other_units(
    current: Spec, fields: Iterable[str], defaults: Spec | None, dataset_size: int | None
) -> Iterator[dict[str, Any]]:
    """The same run, or the nearest to it, with its length or its optimizer steps in another unit, where a problem's
    `fields` have those."""
    asked = {*fields}
    if asked & {*LENGTHS}:
        yield from _lengths(current, defaults, dataset_size)
    if asked and asked <= {*_OF_STEPS}:
        yield from _parts(current)


def cold(spec: Spec) -> bool:
    """Whether a specification says that there is no warm-up."""
    now = spec.carried.warmup_steps, spec.carried.warmup_ratio
    return not any(now) and now != (None, None)


def cold_starts(current: Spec, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The other spellings of no warm-up at all: frameworks count it in steps, or as a share of the run."""
    for path, other in (WARM_UP, WARM_UP[::-1]) if cold(current) else ():
        if path in fields:
            yield {path: None, other: 0.0}
            yield {path: 0.0, other: 0.0}


def preferred(ways: Iterable[Mapping[str, Any]], current: Spec, defaults: Spec | None) -> list[Mapping[str, Any]]:
    """Ways out in the order in which they change the gradient least, as far as that is known; else as they are."""

    def rank(way: Mapping[str, Any]) -> tuple[int, int]:
        least = max((_EFFECT.get(path, 0) for path in way), default=0)
        if len(way) != 1 or least:  # sizes come in the order of their nearness
            return least, 0
        ((path, value),) = way.items()
        nearer = (*_NEARER.get((path, value_of(current, path)), ()), *_WORDS.get(path, ()))
        if value in nearer:
            return least, nearer.index(value)
        return least, len(nearer) + (defaults is None or value_of(defaults, path) != value)

    return sorted(ways, key=rank)


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
