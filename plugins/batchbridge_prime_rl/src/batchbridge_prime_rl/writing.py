"""A specification in prime-rl's settings, where no row of `settings` says it. What is written is read back by the kit,
so that nothing here refuses what comes back as something else."""

from __future__ import annotations

import json
from typing import Any

from batchbridge import Spec
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.schedules import schedule_parts
from batchbridge_prime_rl import settings as keys
from batchbridge_prime_rl.meaning import ALGORITHMS, COLD, GATE, OPENED

NODE = 8
"""Devices of a node, at most."""


def restate(spec: Spec) -> dict[str, Any]:
    """Settings by key. Raises `Unsayable`."""
    steps, endless = spec.horizon.optimizer_steps, "horizon: endless" in spec.open_terms
    if steps is None:
        why = (
            "prime-rl counts its run in optimizer steps, which --dataset-size N tells of one that is counted in epochs"
        )
        raise Unsayable(why, "horizon.optimizer_steps")
    settings: dict[str, Any] = {
        keys.GROUP: spec.rollout.completions_per_prompt,
        "max_steps": None if endless else steps,
    }
    for part in (_lengths, _objective, _optimizer, _opened):
        settings |= part(spec)
    settings |= devices(spec.topology.world_size)
    stale = spec.staleness
    return settings | {
        keys.AGE: stale.maximum if stale.mode == "bounded" else 0,
        keys.NORM: spec.carried.max_gradient_norm or "None",
    }


def devices(world: int) -> dict[str, Any]:
    """One node beside one device that generates, where they fit; else nodes of one size, and one that generates."""
    if world < NODE:
        return {keys.DEPLOYED: "single_node", keys.TRAINING: world, "inference": {}}
    size = next(size for size in range(NODE, 0, -1) if world % size == 0)
    nodes = {keys.DEPLOYED: "multi_node", keys.NODES: world // size, keys.PER_NODE: size, keys.TRAINING: None}
    return nodes | {"deployment.num_infer_nodes": 1, "slurm": {"job_name": "rl"}, "inference": {"router": {}}}


def _lengths(spec: Spec) -> dict[str, Any]:
    budget = spec.micro_batch.tokens_per_device
    total = spec.carried.max_total_tokens if budget is None else budget * spec.topology.context_parallel
    return {"seq_len": total}


def _objective(spec: Spec) -> dict[str, Any]:
    ours, start = spec.objective, f"{keys.LOSS}."
    if ours.surrogate == "ipo":
        return {f"{start}type": "ipo", f"{start}ipo_threshold": ours.clip_low}
    return {f"{start}dppo_mask_low": ours.clip_low, f"{start}dppo_mask_high": ours.clip_high}


def _optimizer(spec: Spec) -> dict[str, Any]:
    carried, begin = spec.carried, "trainer.optim.betas"
    settings: dict[str, Any] = {f"{begin}1": carried.beta1, f"{begin}2": carried.beta2}
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
    settings[f"{keys.SCHEDULER}.type"] = kind
    if kind != "constant":
        if warmup % 1:
            field = "carried.warmup_steps"
            raise Unsayable(f"{field} = {warmup}: steps are whole", field, nearest=({field: float(round(warmup))},))
        least = floor * (1e-6 if carried.learning_rate is None else carried.learning_rate)
        settings |= {
            f"{keys.SCHEDULER}.warmup_steps": int(warmup),
            f"{keys.SCHEDULER}.min_lr": 0.0 if floor == COLD else least,
        }
        settings |= {f"{keys.SCHEDULER}.decay_steps": decay} if kind == "linear" else {}
    if name == "cosine":
        settings[f"{keys.SCHEDULER}.min_lr"] = 0.0
    return settings


def _opened(spec: Spec) -> dict[str, Any]:
    """Terms whose names are prime-rl's; of others the reading back says that they are not there."""
    settings: dict[str, Any] = {keys.PRUNING: False, f"{keys.LOSS}.kl_tau": 0.0}
    ratios: list[Any] = []
    for name, _, text in (term.partition(": ")[2].partition(" ") for term in spec.open_terms):
        try:
            value = json.loads(text) if text else True
        except ValueError:
            continue
        if name in OPENED:
            settings[OPENED[name]] = value
        elif name in ALGORITHMS:
            settings[keys.ALGORITHM] = name
        elif name == "sources" and isinstance(value, list):
            ratios = value
    if spec.carried.top_k not in (None, -1):
        extra = settings.get(keys.EXTRA)
        settings[keys.EXTRA] = {**(extra if isinstance(extra, dict) else {}), "top_k": spec.carried.top_k}
    gates = {"curriculum": {"gates": {"zero_advantage": GATE}}}
    sources = [{"name": f"source-{place}", "ratio": ratio} for place, ratio in enumerate(ratios, 1)]
    if spec.rollout.group_filter == "replace_zero_variance":
        sources = [source | gates for source in sources or [{"name": "source-1"}]]
    return settings | ({keys.SOURCES: sources} if sources else {})
