"""Rules of prime-rl's validators, and what it changes without a word. Source: prime-rl 0.8.0, the symbol of each row.

`rules.json` has the rows about settings whose values do not go together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchbridge import Fix
from batchbridge.kit.rule_table import IN_CONFIG, Rule, nearest_fixes, recorded_rules
from batchbridge_prime_rl import settings as keys

PrimeRLSettings = Mapping[str, Any]
IN_FLIGHT = tuple(f"orchestrator.concurrency.{name}_inflight" for name in ("min", "initial", "max"))
GENERATING, GENERATING_NODES = "deployment.num_infer_gpus", "deployment.num_infer_nodes"


def _shared(native: PrimeRLSettings) -> str | None:
    for key, parts in keys.SHARED.items():
        for part in parts:
            if native[key] is not None and native[part] not in (None, native[key]):
                return f"{key} = {native[key]}, and {part} = {native[part]}: one place says it"
    return None


def _ends(native: PrimeRLSettings) -> str | None:
    ours, theirs = native[keys.STEPS], native["orchestrator.max_steps"]
    return f"the trainer makes {ours} steps, the orchestrator {theirs}" if ours != theirs else None


def _lengths(native: PrimeRLSettings) -> str | None:
    packed, most = (native[key] for key in keys.LENGTHS)
    return f"rows of {packed} tokens do not fit into the trainer's {most}" if most < packed else None


def _batch(native: PrimeRLSettings) -> str | None:
    size, group = native[keys.BATCH], native[keys.GROUP]
    return f"{size} trajectories are not a whole number of groups of {group}" if size and size % group else None


def _nearest(native: PrimeRLSettings) -> tuple[Fix, ...]:
    return nearest_fixes(native, (keys.BATCH, keys.GROUP), lambda now: now[keys.BATCH] % now[keys.GROUP] == 0)


def _group(native: PrimeRLSettings) -> str | None:
    for key in IN_FLIGHT[1:]:
        if native[key] is not None and native[key] < native[keys.GROUP]:
            return f"{key} = {native[key]} is less than a group of {native[keys.GROUP]}"
    return None


def _in_flight(native: PrimeRLSettings) -> str | None:
    least, first, most = (native[key] for key in IN_FLIGHT)
    wrong = most is not None and ((first or 0) > most or least > most)
    return f"at least {least}, at first {first}, at most {most}" if wrong else None


def _schedule(native: PrimeRLSettings) -> str | None:
    kind, warmup, decay = (native[f"{keys.SCHEDULER}.{name}"] for name in ("type", "warmup_steps", "decay_steps"))
    steps, text = native[keys.STEPS], f"{warmup} steps of warm-up"
    if kind == "linear" and not warmup and not decay:
        return "neither a warm-up nor a decay: that is constant"
    if kind == "linear" and decay:
        text = f"{warmup} steps of warm-up and {decay} of decay"
        return f"{text} in a run of {steps} steps" if steps is None or warmup + decay > steps else None
    return f"{text} in a run of {steps} steps" if kind == "cosine" and (steps is None or warmup >= steps) else None


def _node(native: PrimeRLSettings) -> str | None:
    total = native[keys.TRAINING] + native[GENERATING]
    several = native[keys.DEPLOYED] == "multi_node" or total <= native[keys.PER_NODE]
    return None if several else f"{total} devices on a node of {native[keys.PER_NODE]}"


def _nodes(native: PrimeRLSettings) -> str | None:
    if native[keys.DEPLOYED] != "multi_node":
        return None
    generating, groups = native[GENERATING_NODES], native["deployment.nodes_per_fsdp_group"]
    if native[keys.NODES] is None:
        return f"{keys.NODES} is not set"
    if native["slurm"] is None:
        return "several nodes need slurm"
    if generating and native["inference"] is None:
        return f"{generating} nodes generate, and inference is not set"
    if generating == 0 and native["inference"] is not None:
        return "inference is set, and no node generates"
    text = f"{native[keys.NODES]} nodes are not a whole number of groups of {groups}"
    return text if groups and native[keys.NODES] % groups else None


def _asked(native: PrimeRLSettings) -> str | None:
    if native[keys.DEPLOYED] != "multi_node" or not native[keys.NODES]:
        return None
    asked, there = native[keys.TRAINING], native[keys.NODES] * native[keys.PER_NODE]
    return f"{asked} devices were asked for, and there are {there}" if asked != there else None


def _row(
    number: int, test: Callable[[PrimeRLSettings], str | None], where: tuple[str, ...], symbol: str, **more: Any
) -> Rule[Any]:
    said = {"native": "ValueError"} | more
    return IN_CONFIG(f"BB-PRIME-{number:03}", test, where, source=f"prime-rl 0.8.0 {symbol}", **said)


DEPLOYMENT = "RLConfig.auto_setup_deployment"
_ROWS = (
    _row(10, _shared, tuple(keys.SHARED), "validation.propagate_shared_fields"),
    _row(11, _ends, (keys.STEPS, "orchestrator.max_steps"), "validation.validate_shared_max_steps"),
    _row(12, _lengths, keys.LENGTHS, "validation.validate_shared_seq_len"),
    _row(14, _batch, (keys.BATCH, keys.GROUP), "OrchestratorConfig.resolve_batching", fixes=_nearest),
    _row(15, _group, (*IN_FLIGHT[1:], keys.GROUP), "OrchestratorConfig.resolve_batching"),
    _row(16, _in_flight, IN_FLIGHT, "ConcurrencyConfig.validate_bounds"),
    _row(17, _schedule, (f"{keys.SCHEDULER}.type", keys.STEPS), "trainer.validate_scheduler"),
    _row(18, _node, (keys.TRAINING, GENERATING, keys.PER_NODE), "SingleNodeDeploymentConfig.validate_gpu_count"),
    _row(
        19, _nodes, (keys.DEPLOYED, keys.NODES, GENERATING_NODES), "RLConfig.validate_deployment, auto_setup_deployment"
    ),
    _row(20, _asked, (keys.NODES, keys.PER_NODE), DEPLOYMENT, native="trains on the nodes that are there"),
    *recorded_rules(json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8")), "BB-PRIME"),
)
RULES = tuple(sorted(_ROWS, key=lambda rule: rule.code))
