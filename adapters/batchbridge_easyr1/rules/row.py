"""What a row of EasyR1's rules is, the ways out, and what several rows ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Variable, neighbours, rule_table
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import BATCH, FORWARD, GROUP, MICRO, MINI_ROLLOUT, PROMPTS

Rule = rule_table.Rule[Run]


def near(run: Run, keys: tuple[str, ...], legal: Callable[[Mapping[str, int]], bool]) -> tuple[Fix, ...]:
    """The nearest legal values of `keys`, one at a time where that suffices."""
    present = {key: run[key] for key in (PROMPTS, BATCH, GROUP, MICRO, FORWARD)}
    sizes = [Variable(key, max(present[key], 1)) for key in keys]
    return tuple(map(fix_of, neighbours(sizes, lambda changes: legal({**present, **changes}))))


def fix_of(changes: Mapping[str, Any]) -> Fix:
    """The way out that sets `changes`."""
    return Fix(", ".join(f"{key} = {value}" for key, value in changes.items()), changes)


def setting(key: str, value: Any) -> Callable[[Run], tuple[Fix, ...]]:
    """One setting, whatever the run."""
    return lambda run: (fix_of({key: value}),)


def rollout_fixes(run: Run) -> tuple[Fix, ...]:
    """The nearest rollouts that the dataset fills."""

    def legal(v: Mapping[str, int]) -> bool:
        size = v[PROMPTS] if run[MINI_ROLLOUT] is None else run[MINI_ROLLOUT]
        return (run.prompts_in_dataset or 0) // size * size >= v[PROMPTS] and v[PROMPTS] % v[BATCH] == 0

    return near(run, (PROMPTS,), legal)


def step_fixes(run: Run) -> tuple[Fix, ...]:
    """The nearest steps that the replicas share evenly."""

    def legal(v: Mapping[str, int]) -> bool:
        return v[BATCH] * v[GROUP] % max(run.replicas, 1) == 0 and v[PROMPTS] % v[BATCH] == 0

    return near(run, (BATCH, GROUP, PROMPTS), legal)


def known(key: str, names: tuple[str, ...]) -> Callable[[Run], str | None]:
    """The test that `key` has one of `names`."""
    return lambda run: None if run[key] in names else f"{key} = {run[key]}: must be one of {', '.join(names)}"
