"""Ways out: the nearest legal sizes, and the settings that several rows share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit import LARGEST, Variable, nearest_numbers, neighbours
from batchbridge_trl.rules.facts import EVAL_GENERATIONS, EVAL_MICRO, TrlFacts
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import ACCUMULATION, BATCH, FIELDS, STEPS


def setting(key: str, value: Any) -> Callable[[TrlFacts], tuple[Fix, ...]]:
    """One setting, whatever the facts; None: leave it out."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return lambda facts: (Fix(f"{key} = {shown}" if value is not None else f"leave out {key}", {key: value}),)


def window_fixes(facts: TrlFacts) -> tuple[Fix, ...]:
    """Rollout and optimizer step of one size."""
    changes: dict[str, Any] = {STEPS: facts.sizes.window, BATCH: None}
    return (Fix(f"{STEPS} = {facts.sizes.window}, as {ACCUMULATION}", changes),)


def evaluation_fixes(facts: TrlFacts) -> tuple[Fix, ...]:
    """The nearest evaluation batches of whole groups, or no evaluation."""
    world = max(facts.sizes.world, 1)
    micro, group = max(facts.native[EVAL_MICRO], 1), max(facts.evaluation_generations, 1)
    whole_groups = nearest_numbers(micro, multiple_of=group // math.gcd(group, world), high=micro + max(micro, 64))
    groups = nearest_numbers(group, divides=(micro, world), high=group + max(group, 64))
    changes = [*({EVAL_MICRO: size} for size in whole_groups), *({EVAL_GENERATIONS: size} for size in groups)]
    return (*map(_fix, changes), Fix('eval_strategy = "no"', {"eval_strategy": "no"}))


def size_fixes(facts: TrlFacts) -> tuple[Fix, ...]:
    """The nearest legal sizes, one setting at a time where that suffices."""
    sizes = facts.sizes
    if sizes.generation_batch is not None and sizes.steps_per_generation is not None:
        return tuple(Fix(f"leave out {key}", {key: None}) for key in (STEPS, BATCH))
    if sizes.generation_batch is not None:
        cut = "generation_batch"
    else:
        cut = "accumulation" if sizes.steps_per_generation is None else "steps_per_generation"
    minimum = {name: 2 if name == "generations" else 1 for name in ("world", "micro", cut, "generations")}
    # Sizes below their minimum must change anyway; what is sought starts where they are mended.
    start = {name: max(getattr(sizes, name), low) for name, low in minimum.items()}
    forced = {name: value for name, value in start.items() if value != getattr(sizes, name)}
    prompts = facts.prompts if not holds("<0.16", facts.version) else None  # 0.15 trains any number of prompts
    shared = ("world", "micro") if facts.groups_per_micro_step else ("world", "micro", cut)
    mended = _legal(start, cut, shared)
    changes: list[dict[str, int]] = [{}] if mended and forced and _fits(start, cut, prompts) else []
    if not mended or prompts is None or prompts > 0:  # no size fits a dataset without prompts
        changes = changes or _neighbours(start, minimum, cut, shared, prompts)
    if not mended:
        changes = changes or _neighbours(start, minimum, cut, shared)
    return tuple(_fix({FIELDS[name]: value for name, value in {**forced, **change}.items()}) for change in changes)


def _completions(sizes: Mapping[str, int], cut: str) -> int:
    return sizes[cut] if cut == "generation_batch" else sizes["world"] * sizes["micro"] * sizes[cut]


def _legal(sizes: Mapping[str, int], cut: str, shared: tuple[str, ...]) -> bool:
    completions = _completions(sizes, cut)
    whole = completions if cut == "generation_batch" else math.prod(sizes[name] for name in shared)
    return whole % sizes["generations"] == 0 and completions % (sizes["world"] * sizes["micro"]) == 0


def _fits(sizes: Mapping[str, int], cut: str, prompts: int | None) -> bool:
    return not prompts or _completions(sizes, cut) // sizes["generations"] <= prompts


def _neighbours(
    start: Mapping[str, int],
    minimum: Mapping[str, int],
    cut: str,
    shared: tuple[str, ...],
    prompts: int | None = None,
) -> list[dict[str, int]]:
    """The nearest legal value below and above each size, the others unchanged; of rollouts of at most `prompts`.

    shared: the sizes whose product holds whole groups, where no rollout size is given. One group of all completions,
    or a rollout of whole groups and micro-batches, is legal: one change always suffices.
    """
    group, per_micro_step = start["generations"], start["world"] * start["micro"]
    completions = _completions(start, cut)
    most = prompts * group if prompts else completions * LARGEST  # completions per rollout
    variables = []
    for name, value in start.items():
        low, high = minimum[name], min(value + max(value, 64), LARGEST)
        if name == "generations":
            factors = (start[cut],) if cut == "generation_batch" else tuple(start[other] for other in shared)
            low = max(low, -(-completions // prompts)) if prompts else low
            variables.append(Variable(name, value, low, max(high, completions), divides=factors))
        elif cut != "generation_batch":
            high = min(high, most // (completions // value))
            others = math.prod(start[other] for other in shared if other != name)
            step = group // math.gcd(group, others) if name in shared else 1
            variables.append(Variable(name, value, low, high, multiple_of=step))
        elif name == cut:
            whole = math.lcm(per_micro_step, group)
            high = min(max(high, value + whole), most, LARGEST)
            variables.append(Variable(name, value, low, high, multiple_of=whole))
        else:
            variables.append(Variable(name, value, low, high, divides=completions))
    return neighbours(variables, lambda sizes: _legal(sizes, cut, shared) and _fits(sizes, cut, prompts))


def _fix(change: Mapping[str, int]) -> Fix:
    return Fix(", ".join(f"{key} = {value}" for key, value in change.items()), dict(change))
