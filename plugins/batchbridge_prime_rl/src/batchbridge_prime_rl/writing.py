"""A specification in prime-rl's settings, where no row of `settings` says it. What is written is read back by the kit,
so that nothing here refuses what comes back as something else."""

from __future__ import annotations

import json
from typing import Any

from batchbridge import Spec
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.schedules import schedule_parts
from batchbridge_prime_rl.meaning import COLD, GATE, OPTIMIZERS
from batchbridge_prime_rl.settings import (
    AGE,
    ALGORITHM,
    DECAY,
    DEPLOYED,
    EXTRA,
    GROUP,
    LOSS,
    NODES,
    NORM,
    PENALTY,
    PER_NODE,
    PRUNING,
    ROLES,
    SCHEDULER,
    SOURCES,
    TRAINING,
)

NODE = 8
"""Devices of a node, at most."""


def restate(spec: Spec) -> dict[str, Any]:
    """Settings by key. Raises `Unsayable`."""
    if spec.horizon.optimizer_steps is None:
        raise Unsayable("prime-rl counts its run in optimizer steps", "horizon.optimizer_steps")
    said: dict[str, Any] = {GROUP: spec.rollout.completions_per_prompt, "max_steps": spec.horizon.optimizer_steps}
    for part in (_devices, _lengths, _objective, _optimizer, _opened):
        said |= part(spec)
    stale = spec.staleness
    return said | {AGE: stale.maximum if stale.mode == "bounded" else 0, NORM: spec.carried.max_gradient_norm or "None"}


def _devices(spec: Spec) -> dict[str, Any]:
    """One node beside one device that generates, where they fit; else nodes of one size, and one that generates."""
    world = spec.topology.world_size
    if world < NODE:
        return {DEPLOYED: "single_node", TRAINING: world, "inference": {}}
    size = next(size for size in range(NODE, 0, -1) if world % size == 0)
    nodes = {DEPLOYED: "multi_node", NODES: world // size, PER_NODE: size, TRAINING: None}
    return nodes | {"deployment.num_infer_nodes": 1, "slurm": {"job_name": "rl"}, "inference": {"router": {}}}


def _lengths(spec: Spec) -> dict[str, Any]:
    budget = spec.micro_batch.tokens_per_device
    total = spec.carried.max_total_tokens if budget is None else budget * spec.topology.context_parallel
    return {"seq_len": total}


def _objective(spec: Spec) -> dict[str, Any]:
    ours, said = spec.objective, {}
    low, high = ours.clip_low, ours.clip_high
    if ours.surrogate == "ipo":
        said = {f"{LOSS}.type": "ipo", f"{LOSS}.ipo_threshold": low}
    elif ours.surrogate in ("dppo_tv", None):
        said = {f"{LOSS}.type": "default", f"{LOSS}.dppo_mask_low": low, f"{LOSS}.dppo_mask_high": high}
    return said


def _optimizer(spec: Spec) -> dict[str, Any]:
    carried, begin = spec.carried, "trainer.optim.betas"
    said: dict[str, Any] = {f"{begin}1": carried.beta1, f"{begin}2": carried.beta2}
    try:
        name, arguments = schedule_parts(carried.lr_schedule or "constant")
        start = float(arguments.get("warmup_start_rate", COLD))
        floor = float(arguments.get("min_lr_rate", start))
        decay = int(arguments.get("decay_steps", 0))
    except (TypeError, ValueError, OverflowError) as wrong:
        raise Unsayable(f"carried.lr_schedule = {carried.lr_schedule}: {wrong}", "carried.lr_schedule") from None
    warmup = carried.warmup_steps or 0
    kinds = {"cosine": "cosine", "cosine_with_min_lr": "cosine", "linear_at_the_end": "linear"}
    kind = kinds.get(name, "linear" if warmup else "constant")
    said[f"{SCHEDULER}.type"] = kind
    if kind != "constant":
        if warmup % 1:
            raise Unsayable(f"carried.warmup_steps = {warmup}: steps are whole", "carried.warmup_steps")
        least = floor * (1e-6 if carried.learning_rate is None else carried.learning_rate)
        said |= {f"{SCHEDULER}.warmup_steps": int(warmup), f"{SCHEDULER}.min_lr": 0.0 if floor == COLD else least}
        said |= {f"{SCHEDULER}.decay_steps": decay} if kind == "linear" else {}
    if name == "cosine":
        said[f"{SCHEDULER}.min_lr"] = 0.0
    return said


def _opened(spec: Spec) -> dict[str, Any]:
    """Terms whose names are prime-rl's; of others the reading back says that they are not there."""
    said: dict[str, Any] = {PRUNING: False, f"{LOSS}.kl_tau": 0.0}
    extra: dict[str, Any] = {} if spec.carried.top_k in (None, -1) else {"top_k": spec.carried.top_k}
    ratios: list[Any] = []
    for group, _, term in (term.partition(": ") for term in spec.open_terms):
        name, _, text = term.partition(" ")
        try:
            value = json.loads(text) if text else None
        except ValueError:
            continue
        if (group, name) == ("loss", "filter_zero_advantages"):
            said[PRUNING] = True
        elif (group, name) in (("objective", "kl_tau"), ("advantage", "adv_tau")):
            said[f"{LOSS}.{name}"] = value
        elif (group, name) in (("advantage", "max_rl"), ("advantage", "rae"), ("objective", "echo")):
            said |= {ALGORITHM: name, **({DECAY: value} if name == "rae" else {ROLES: value} if name == "echo" else {})}
        elif (group, name) == ("advantage", "length_penalty"):
            said[PENALTY] = value
        elif (group, name) == ("carried", "extra_body") and isinstance(value, dict):
            extra |= value
        elif group == "carried" and name in OPTIMIZERS.get(spec.carried.optimizer or "", ()):
            said[f"trainer.optim.{name}"] = value
        elif (group, name) == ("order", "sources") and isinstance(value, list):
            ratios = value
    gates = {"curriculum": {"gates": {"zero_advantage": GATE}}}
    sources = [{"name": f"source-{place}", "ratio": ratio} for place, ratio in enumerate(ratios, 1)]
    if spec.rollout.group_filter == "drop_zero_variance":
        sources = [source | gates for source in sources or [{"name": "source-1"}]]
    return said | ({SOURCES: sources} if sources else {}) | ({EXTRA: extra} if extra else {})
