"""The ways out of broken rules that the tables share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Variable, neighbours
from batchbridge_verl.run import DYNAMIC, GENERATION, GPUS, GROUP, MICRO, MINI, NODES, PROMPTS, VerlRun

VerlFixes = Callable[[VerlRun], tuple[Fix, ...]]

WORLD = "devices"
"""Nodes x GPUs, where a way out changes them."""


def near(run: VerlRun, keys: tuple[str, ...], legal: Callable[[Mapping[str, int]], bool]) -> tuple[Fix, ...]:
    """The nearest legal values of `keys`, one at a time where that suffices."""
    present = {
        PROMPTS: run[PROMPTS],
        GENERATION: run.fetched,
        GROUP: run[GROUP],
        MINI: run[MINI],
        MICRO: run.micro or 1,
        WORLD: run.world,
    }
    sizes = [Variable(key, max(present[key], 1)) for key in keys]
    return tuple(fix(change) for change in neighbours(sizes, lambda changed: legal({**present, **changed})))


def fix(change: Mapping[str, Any]) -> Fix:
    """Settings to change, `WORLD` standing for nodes and GPUs."""
    text = ", ".join(f"{key} = {'null' if value is None else value}" for key, value in change.items())
    changes = {key: value for key, value in change.items() if key != WORLD}
    if WORLD in change:
        from batchbridge.kit.writing import nodes_and_gpus

        changes |= dict(zip((NODES, GPUS), nodes_and_gpus(change[WORLD]), strict=True))
    return Fix(text.replace(f"{WORLD} =", "trainer.nnodes x n_gpus_per_node ="), changes)


def setting(key: str, value: Any) -> VerlFixes:
    """One setting, whatever the run."""
    return lambda run: (Fix(f"{key}={'null' if value is None else value}", {key: value}),)


def either(*changes: tuple[str, Any]) -> VerlFixes:
    """One of several settings, whatever the run."""
    return lambda run: tuple(way for key, value in changes for way in setting(key, value)(run))


def instead(size: str, deprecated: str) -> VerlFixes:
    """The size that is read, in place of the deprecated one."""
    return lambda run: (Fix(f"{size} = 1 instead", {size: 1, deprecated: None}),)


def shared(run: VerlRun) -> int:
    """Devices of one replica."""
    return max(math.prod(run.parallel), 1)


def mini_fixes(role: str) -> VerlFixes:
    """The way out of as many prompts in a rollout as in a mini-batch, of the actor or the critic."""
    mini = f"{role}ppo_mini_batch_size"
    pairs = ((mini, PROMPTS), (PROMPTS, mini))
    return lambda run: tuple(fix({key: run[other]}) for key, other in pairs if run[other] > 0)


def whole_steps(run: VerlRun) -> tuple[Fix, ...]:
    """Sizes with which a rollout is whole mini-batches, and a mini-batch whole replicas."""
    per_replica, by = shared(run), run.fetched_by

    def legal(v: Mapping[str, int]) -> bool:
        return v[by] % v[MINI] == 0 and v[MINI] * v[GROUP] * per_replica % v[WORLD] == 0

    return near(run, (MINI, by), legal)


def whole_shares(run: VerlRun) -> tuple[Fix, ...]:
    """Sizes with which a mini-batch is shared out evenly to replicas, and to their micro-batches."""
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        if v[WORLD] % per_replica or v[MINI] * v[GROUP] % (v[WORLD] // per_replica):
            return False
        rows = v[MINI] * v[GROUP] * per_replica // v[WORLD]
        return run[DYNAMIC] or run.micro is None or rows % v[MICRO] == 0

    return near(run, (MINI, GROUP, WORLD), legal)
