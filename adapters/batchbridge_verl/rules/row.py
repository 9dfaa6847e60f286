"""What a row of verl's rules is, and the ways out that the tables share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Variable, neighbours, rule_table
from batchbridge_verl.run import DYNAMIC, GPUS, GROUP, MICRO, MINI, NODES, PROMPTS, Run
from batchbridge_verl.settings import ACTOR

AGGREGATION = f"{ACTOR}loss_agg_mode"
ESTIMATOR = "algorithm.adv_estimator"
MODE = f"{ACTOR}policy_loss.loss_mode"
WORKERS = "data.dataloader_num_workers"
DEVICES = (NODES, GPUS)
ENGINE_WORKERS = ">=0.7.1"
"""Versions with engine workers; 0.7.1 only with `use_legacy_worker_impl=disable`, which `Run.legacy` tells."""

Test = Callable[[Run], str | None]
Fixes = Callable[[Run], tuple[Fix, ...]]

Rule = rule_table.Rule[Run]

_SIZE_KEYS = {"prompts": PROMPTS, "group": GROUP, "mini": MINI, "micro": MICRO, "world": "devices"}


def near(run: Run, names: tuple[str, ...], legal: Callable[[Mapping[str, int]], bool]) -> tuple[Fix, ...]:
    """The nearest legal values of `names`, one at a time where that suffices."""
    present = {
        "prompts": run[PROMPTS],
        "group": run[GROUP],
        "mini": run[MINI],
        "micro": run.micro or 1,
        "world": run.world,
    }
    sizes = [Variable(name, max(present[name], 1)) for name in names]
    changes = neighbours(sizes, lambda changed: legal({**present, **changed}))
    return tuple(fix({_SIZE_KEYS[name]: value for name, value in change.items()}) for change in changes)


def fix(change: Mapping[str, Any]) -> Fix:
    """Settings to change, `devices` standing for nodes and GPUs."""
    text = ", ".join(f"{key} = {'null' if value is None else value}" for key, value in change.items())
    changes = {key: value for key, value in change.items() if key != "devices"}
    if "devices" in change:
        changes |= devices(change["devices"])
    return Fix(text.replace("devices =", "trainer.nnodes x n_gpus_per_node ="), changes)


def devices(world: int) -> dict[str, int]:
    """Nodes and GPUs per node (at most 8, as many as divide)."""
    gpus = next(size for size in range(min(world, 8), 0, -1) if world % size == 0)
    return {NODES: world // gpus, GPUS: gpus}


def setting(key: str, value: Any) -> Fixes:
    """One setting, whatever the run."""
    return lambda run: (Fix(f"{key}={'null' if value is None else value}", {key: value}),)


def either(*changes: tuple[str, Any]) -> Fixes:
    """One of several settings, whatever the run."""
    return lambda run: tuple(way for key, value in changes for way in setting(key, value)(run))


def shared(run: Run) -> int:
    """Devices of one replica."""
    return max(math.prod(run.parallel), 1)


def mini_fixes(run: Run) -> tuple[Fix, ...]:
    """As many prompts in a rollout as in a mini-batch."""
    return tuple(fix({key: size}) for key, size in ((MINI, run[PROMPTS]), (PROMPTS, run[MINI])) if size > 0)


def whole_steps(run: Run) -> tuple[Fix, ...]:
    """Sizes with which a rollout is whole mini-batches, and a mini-batch whole replicas."""
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        return v["prompts"] % v["mini"] == 0 and v["mini"] * v["group"] * per_replica % v["world"] == 0

    return near(run, ("mini", "prompts"), legal)


def whole_shares(run: Run) -> tuple[Fix, ...]:
    """Sizes with which a mini-batch is shared out evenly to replicas, and to their micro-batches."""
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        if v["world"] % per_replica or v["mini"] * v["group"] % (v["world"] // per_replica):
            return False
        rows = v["mini"] * v["group"] * per_replica // v["world"]
        return run[DYNAMIC] or run.micro is None or rows % v["micro"] == 0

    return near(run, ("mini", "group", "world"), legal)
