"""The ways out of EasyR1's rules, and the test that several of them are.

Its own file: three tables of rules use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from batchbridge import Fix
from batchbridge.kit.rule_table import nearest_fixes, setting_fixes
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import BATCH, FORWARD, GROUP, MICRO, MINI_ROLLOUT, PROMPTS

EasyR1Fixes = Callable[[EasyR1Run], tuple[Fix, ...]]


def near(*keys: str) -> Callable[[Callable[[EasyR1Run, Mapping[str, int]], bool]], EasyR1Fixes]:
    """The decorator of what says whether a run could have such sizes (by key): it becomes the ways out, the nearest
    legal values of `keys`, one at a time where that suffices."""

    def ways_out(legal: Callable[[EasyR1Run, Mapping[str, int]], bool]) -> EasyR1Fixes:
        def fixes(run: EasyR1Run) -> tuple[Fix, ...]:
            sizes = {key: run[key] for key in (PROMPTS, BATCH, GROUP, MICRO, FORWARD)}
            return nearest_fixes(sizes, keys, partial(legal, run))

        return fixes

    return ways_out


def setting(key: str, value: Any) -> EasyR1Fixes:
    """One setting, whatever the run."""
    return lambda run: setting_fixes({key: value})


@near(PROMPTS)
def rollout_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    """The nearest rollouts that the dataset fills."""
    size = v[PROMPTS] if run[MINI_ROLLOUT] is None else run[MINI_ROLLOUT]
    return (run.prompts_in_dataset or 0) // size * size >= v[PROMPTS] and v[PROMPTS] % v[BATCH] == 0


@near(BATCH, GROUP, PROMPTS)
def step_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    """The nearest steps that the replicas share evenly."""
    return v[BATCH] * v[GROUP] % max(run.replicas, 1) == 0 and v[PROMPTS] % v[BATCH] == 0


def known(key: str, names: Collection[str]) -> Callable[[EasyR1Run], str | None]:
    """The test that `key` has one of `names`."""
    return lambda run: None if run[key] in names else f"{key} = {run[key]}: must be one of {', '.join(names)}"
