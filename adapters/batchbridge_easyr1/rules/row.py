"""What a row of EasyR1's rules is, the ways out, and what several rows ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Variable, neighbours, rule_table
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import BATCH, FORWARD, GROUP, MICRO, MINI_ROLLOUT, PROMPTS

Rule = rule_table.Rule[Run]


Legal = Callable[[Run, Mapping[str, int]], bool]
"""Whether a run could have these sizes, by key."""


def near(keys: tuple[str, ...], legal: Legal) -> Callable[[Run], tuple[Fix, ...]]:
    """The nearest legal values of `keys`, one at a time where that suffices."""

    def fixes(run: Run) -> tuple[Fix, ...]:
        present = {key: run[key] for key in (PROMPTS, BATCH, GROUP, MICRO, FORWARD)}
        sizes = [Variable(key, max(present[key], 1)) for key in keys]
        return tuple(map(fix_of, neighbours(sizes, lambda changes: legal(run, {**present, **changes}))))

    return fixes


def fix_of(changes: Mapping[str, Any]) -> Fix:
    """The way out that sets `changes`."""
    return Fix(", ".join(f"{key} = {value}" for key, value in changes.items()), changes)


def setting(key: str, value: Any) -> Callable[[Run], tuple[Fix, ...]]:
    """One setting, whatever the run."""
    return lambda run: (fix_of({key: value}),)


def _fills_a_rollout(run: Run, v: Mapping[str, int]) -> bool:
    size = v[PROMPTS] if run[MINI_ROLLOUT] is None else run[MINI_ROLLOUT]
    return (run.prompts_in_dataset or 0) // size * size >= v[PROMPTS] and v[PROMPTS] % v[BATCH] == 0


def _shares_evenly(run: Run, v: Mapping[str, int]) -> bool:
    return v[BATCH] * v[GROUP] % max(run.replicas, 1) == 0 and v[PROMPTS] % v[BATCH] == 0


rollout_fixes = near((PROMPTS,), _fills_a_rollout)
"""The nearest rollouts that the dataset fills."""
step_fixes = near((BATCH, GROUP, PROMPTS), _shares_evenly)
"""The nearest steps that the replicas share evenly."""


def known(key: str, names: tuple[str, ...]) -> Callable[[Run], str | None]:
    """The test that `key` has one of `names`."""
    return lambda run: None if run[key] in names else f"{key} = {run[key]}: must be one of {', '.join(names)}"
