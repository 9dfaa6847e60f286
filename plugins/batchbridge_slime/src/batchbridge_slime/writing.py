"""A specification in slime's options, where no row of `settings` says it. What is written is read back by the kit, so
that nothing here refuses what comes back as something else."""

from __future__ import annotations

import re
from typing import Any

from batchbridge import Spec
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.schedules import schedule_parts
from batchbridge.meaning.schedule_rates import WARMUP_START
from batchbridge_slime.settings import FILTER, ICEPOP

NODE = 8
"""Devices of a node, where a specification says only how many there are."""
STEP = "optimizer_step.completions_per_step"
FILTERS = {"none": None, "replace_zero_variance": FILTER, "custom": "MODULE.FILTER"}
WORDS = {"token_truncate": None, "token_mask": ICEPOP}
"""Kinds of `objective.sampler_correction` to the function that makes them; None: slime's own."""
NAMED = {"use-opsm": "opsm-delta", "enable-mtp-training": "mtp-loss-scaling-factor", "moe-z-loss-coeff": ""}
"""Options that open terms name, with the one that has the number; "": their own."""


def options_of(spec: Spec) -> dict[str, Any]:
    """Options by name. Raises `Unsayable`."""
    settings: dict[str, Any] = {}
    for part in (_sizes, _generated, _objective, _correction, _schedule, _carried, _opened):
        settings |= part(spec)
    return settings


def _sizes(spec: Spec) -> dict[str, Any]:
    total, size = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    if not total or not size or size > total:
        nearest = ({STEP: total},) if total else ()
        raise Unsayable(f"{STEP} = {size}: a step is completions of one rollout of {total}", STEP, nearest=nearest)
    top, world = spec.topology, spec.topology.world_size
    if world % (parts := top.tensor_parallel * top.pipeline_parallel * top.context_parallel):
        text = f"{world} devices are not a multiple of the {parts} of a replica"
        fields = [
            f"topology.{name}" for name in ("world_size", "tensor_parallel", "pipeline_parallel", "context_parallel")
        ]
        raise Unsayable(text, *fields, nearest=({"topology.world_size": -(-world // parts) * parts},))
    nodes = world // NODE if world % NODE == 0 else 1
    settings = {"actor-num-nodes": nodes, "actor-num-gpus-per-node": world // nodes, "global-batch-size": size}
    micro, horizon = spec.micro_batch, spec.horizon
    if micro.tokens_per_device is not None:
        settings |= {"use-dynamic-batch-size": True, "max-tokens-per-gpu": micro.tokens_per_device}
    else:
        settings["micro-batch-size"] = micro.completions_per_device or 1
    said = [horizon.rollouts, horizon.epochs, horizon.optimizer_steps]
    if said.count(None) != 2 or horizon.optimizer_steps is not None or horizon.epochs not in (None, 1.0):
        fields = [f"horizon.{name}" for name in ("rollouts", "epochs", "optimizer_steps")]
        raise Unsayable("a run is so many rollouts, or one epoch", *fields)
    return settings | ({"num-epoch": 1} if horizon.rollouts is None else {"num-rollout": horizon.rollouts})


def _generated(spec: Spec) -> dict[str, Any]:
    rollout, stale = spec.rollout, spec.staleness
    if rollout.group_filter not in FILTERS:
        ways = tuple({"rollout.group_filter": word} for word in FILTERS)
        raise Unsayable(f"rollout.group_filter = {rollout.group_filter}", "rollout.group_filter", nearest=ways)
    settings: dict[str, Any] = {"dynamic-sampling-filter-path": FILTERS[rollout.group_filter]}
    settings["over-sampling-batch-size"] = more = rollout.prompts_per_generation_batch
    if more is not None and more < (prompts := rollout.prompts_per_rollout or 0):
        field = "rollout.prompts_per_generation_batch"
        text = f"{field} = {more}: prompts are generated in batches of at least a rollout, {prompts}"
        raise Unsayable(text, field, nearest=({field: None},))
    if rollout.sample_unit != "completion":
        settings["custom-generate-function-path"] = "MODULE.GENERATE"
    settings["program"] = "train_async.py" if stale.mode == "lookahead" else "train.py"
    return settings | {"partial-rollout": stale.mode == "unbounded"}


def _objective(spec: Spec) -> dict[str, Any]:
    ours, advantage = spec.objective, spec.advantage
    settings: dict[str, Any] = {"eps-clip-c": ours.dual_clip}
    sequence = "gspo" if ours.ratio_level == "sequence" else "grpo"
    settings["advantage-estimator"] = "cispo" if ours.surrogate == "cispo" else sequence
    settings["use-rollout-logprobs"] = ours.old_logprobs == "sampler"
    settings["disable-rewards-normalization"] = advantage.baseline == "none"
    scaled = advantage.scale != "none" or advantage.baseline == "none" or spec.rollout.completions_per_prompt == 1
    settings["disable-grpo-std-normalization"] = not scaled
    if ours.kl_placement == "loss":
        estimator = ours.kl_estimator or "k1"
        base = estimator.removesuffix("_times_ratio")
        clamped = base == "k3" and ours.kl_clamp is not None
        if base not in ("k1", "k2", "k3"):
            raise Unsayable(f"objective.kl_estimator = {estimator}", "objective.kl_estimator")
        settings |= {"use-kl-loss": True, "kl-loss-coef": ours.kl_coefficient, "use-unbiased-kl": base != estimator}
        settings["kl-loss-type"] = "low_var_kl" if clamped else base
    return settings


def _correction(spec: Spec) -> dict[str, Any]:
    if (said := spec.objective.sampler_correction) is None:
        return {}
    found = re.fullmatch(r"(\w+) \[(-|[\d.e+-]+), ([\d.e+-]+)\]", said)
    if found is None or found[1] not in WORDS:
        field = "objective.sampler_correction"
        raise Unsayable(f"slime has no {said}", field, nearest=({field: None},))
    low = 0.0 if found[2] == "-" else float(found[2])
    path = {"custom-tis-function-path": WORDS[found[1]]}
    return {"use-tis": True, "tis-clip": float(found[3]), "tis-clip-low": low, **path}


def _schedule(spec: Spec) -> dict[str, Any]:
    carried, settings = spec.carried, dict[str, Any]()
    if carried.lr_schedule is not None:
        try:
            name, arguments = schedule_parts(carried.lr_schedule)
        except ValueError:
            name, arguments = "", {}
        if name not in ("constant", "linear", "cosine", "cosine_with_min_lr", "inverse-square-root"):
            raise Unsayable(f"Megatron has no schedule {carried.lr_schedule}", "carried.lr_schedule")
        settings["lr-decay-style"] = name.partition("_")[0]
        peak = carried.learning_rate if carried.learning_rate is not None else 1e-6
        shares = {"min_lr_rate": "min-lr", WARMUP_START: "lr-warmup-init"}
        for argument, key in shares.items():
            if isinstance(share := arguments.get(argument), (int, float)):
                settings[key] = share * peak
        settings["lr-decay-iters"] = arguments.get("decay_ticks")
    if carried.warmup_ratio is not None:
        if carried.warmup_ratio > 1:
            raise Unsayable(f"carried.warmup_ratio = {carried.warmup_ratio}: a share", "carried.warmup_ratio")
        return settings | {"lr-warmup-fraction": carried.warmup_ratio}
    steps = carried.warmup_steps or 0.0
    if steps != int(steps):
        raise Unsayable(f"carried.warmup_steps = {steps}: whole steps", "carried.warmup_steps")
    return settings | {"lr-warmup-iters": int(steps)}


def _carried(spec: Spec) -> dict[str, Any]:
    carried, settings = spec.carried, dict[str, Any]()
    settings["optimizer"] = "sgd" if carried.optimizer == "sgd" else "adam"
    if carried.dropout in ("off", None):
        settings |= {"attention-dropout": 0.0, "hidden-dropout": 0.0}
    if carried.reference_sync_steps is not None:
        steps = (spec.completions_per_rollout or 1) // (spec.optimizer_step.completions_per_step or 1)
        if carried.reference_sync_steps % steps:
            text = f"the reference is updated after whole rollouts of {steps} steps"
            raise Unsayable(text, "carried.reference_sync_steps")
        settings["ref-update-interval"] = carried.reference_sync_steps // steps
    if carried.router_loss_coefficient:
        settings["moe-aux-loss-coeff"] = carried.router_loss_coefficient
    return settings


def _opened(spec: Spec) -> dict[str, Any]:
    """Terms whose names are options; of others the reading back says that they are not there."""
    settings: dict[str, Any] = {}
    for name, _, value in (term.partition(": ")[2].partition(" ") for term in spec.open_terms):
        if name in NAMED and re.fullmatch(r"-?[\d.]+(e-?\d+)?", value):
            settings |= {name: True, NAMED[name]: float(value)} if NAMED[name] else {name: float(value)}
    return settings
