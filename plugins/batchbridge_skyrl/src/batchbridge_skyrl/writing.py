"""A specification in SkyRL's settings: what no row says alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from batchbridge import Spec
from batchbridge.kit.key_table import Unsayable
from batchbridge_skyrl.meaning import ENTRIES, ESTIMATORS, FULLY_ASYNC, LOOKAHEAD, LOSSES, MAIN, REDUCTIONS
from batchbridge_skyrl.settings import (
    ALGORITHM,
    ASYNC,
    BETAS,
    BUDGET,
    BY_STD,
    CONTEXT,
    CORRECTION,
    ENTROPY,
    ENTROPY_COEF,
    ENTRY,
    ESTIMATOR,
    FORWARD,
    GPUS,
    INPUT_TOKENS,
    KL,
    KL_COEF,
    KL_LOSS,
    KL_REWARD,
    LOSS,
    MASKED,
    MAX_SEQ,
    MEGATRON,
    MICRO,
    MINI,
    NEW_TOKENS,
    NODES,
    PIPELINE,
    PROMPT_TOKENS,
    REDUCTION,
    SAMPLES,
    SAMPLING,
    STEPWISE,
    STRATEGY,
    TENSOR,
    TURNS,
    ULYSSES,
)

NODE = 8
"""Devices of a node, where a specification says only how many there are."""


def restate(spec: Spec) -> dict[str, Any]:
    """Settings by key; None where the default will do. Raises `Unsayable`."""
    parts: tuple[Callable[[Spec], Mapping[str, Any]], ...] = (
        _topology,
        _steps,
        _loss,
        _advantage,
        _objective,
        _sampled,
        _opened,
    )
    said: dict[str, Any] = {}
    for part in parts:
        said |= part(spec)
    return said


def _topology(spec: Spec) -> dict[str, Any]:
    topology, world = spec.topology, spec.topology.world_size
    nodes = world // NODE if world > NODE and world % NODE == 0 else 1
    split = topology.tensor_parallel * topology.pipeline_parallel > 1
    megatron = split or spec.carried.weight_decay_excludes == "biases_and_norms"
    said = {NODES: nodes, GPUS: world // nodes, STRATEGY: "megatron" if megatron else "fsdp"}
    keys = (TENSOR, PIPELINE, CONTEXT) if megatron else (ULYSSES,)
    sizes = (topology.tensor_parallel, topology.pipeline_parallel, topology.context_parallel)
    said |= dict(zip(keys, sizes if megatron else sizes[2:], strict=True))
    if spec.carried.router_loss_coefficient is not None:
        said[f"{MEGATRON}.moe_router_load_balancing_type"] = "aux_loss"
        said[f"{MEGATRON}.moe_aux_loss_coeff"] = spec.carried.router_loss_coefficient
    for name in ("ref", "critic"):  # one set of devices holds all models, and the engines
        said[f"trainer.placement.{name}_num_nodes"] = nodes
        said[f"trainer.placement.{name}_num_gpus_per_node"] = world // nodes
    said |= {key.replace("policy", "ref"): said[key] for key in keys}
    if spec.staleness.mode == "sync":
        said["generator.inference_engine.num_engines"] = world
    return said


def _steps(spec: Spec) -> dict[str, Any]:
    size, group, micro = spec.optimizer_step.completions_per_step, spec.rollout.completions_per_prompt, spec.micro_batch
    if not size or size % group:
        path = "optimizer_step.completions_per_step"
        raise Unsayable(f"{path} = {size}: a mini-batch is whole groups of {group} completions", path)
    said: dict[str, Any] = {MINI: size // group, "trainer.critic_mini_batch_size": size // group}
    if micro.tokens_per_device is not None:
        return said | {BUDGET: micro.tokens_per_device}
    alone = micro.completions_per_device
    return said | {MICRO: alone, FORWARD: micro.forward_completions_per_device or alone}


def _loss(spec: Spec) -> dict[str, Any]:
    policy = spec.loss.policy
    names = [name for name, ours in REDUCTIONS.items() if ours == policy.aggregation]
    if policy.denominator_scope == "micro_batch":
        names = [name for name in names if name.endswith("legacy")]
    if not names:
        raise Unsayable(f"loss.policy.aggregation = {policy.aggregation}: no loss_reduction", "loss.policy.aggregation")
    return {REDUCTION: names[0], MAX_SEQ: policy.constant}


def _advantage(spec: Spec) -> dict[str, Any]:
    rule, group = spec.advantage, spec.rollout.completions_per_prompt
    opened = [name for name in _names(spec, "advantage") if " " not in name and name != "batch_normalize"]
    said: dict[str, Any] = {f"{ALGORITHM}.advantage_batch_normalize": "batch_normalize" in _names(spec, "advantage")}
    for name in _names(spec, "advantage"):
        if found := re.fullmatch(r"(gamma|lambd) (\S+)", name):
            said[f"{ALGORITHM}.{found[1]}"] = _number(found[2], "open_terms")
    if opened:
        return said | {ESTIMATOR: opened[0]}
    if group == 1 and (rule.baseline, rule.scale) == ("none", "none"):
        return said | {ESTIMATOR: "grpo"}
    for name, (baseline, scale) in ESTIMATORS.items():
        if name != "maxrl" and rule.baseline == baseline and rule.scale in ((scale,) if scale else ("group", "none")):
            said |= {ESTIMATOR: name, BY_STD: rule.scale == "group"}
            return said | ({"trainer.critic.model.path": "Qwen/Qwen2.5-1.5B-Instruct"} if name == "gae" else {})
    text = f"advantage.baseline = {rule.baseline} with advantage.scale = {rule.scale}: no advantage_estimator"
    raise Unsayable(text, "advantage.baseline", "advantage.scale")


def _objective(spec: Spec) -> dict[str, Any]:
    ours = spec.objective
    said: dict[str, Any] = {KL_LOSS: ours.kl_placement == "loss", KL_REWARD: ours.kl_placement == "reward"}
    if ours.kl_placement in ("loss", "reward"):
        said |= {KL: ours.kl_estimator, KL_COEF: ours.kl_coefficient}
    if ours.entropy_coefficient:
        said |= {ENTROPY: True, ENTROPY_COEF: ours.entropy_coefficient}
    opened = [name for name in _names(spec, "objective") if " " not in name and name != "adaptive_kl"]
    name = opened[0] if opened else _loss_type(spec)
    said[LOSS] = name
    loss = LOSSES.get(name)
    for bound, key in ((ours.clip_low, loss and loss.low), (ours.clip_high, loss and loss.high)):
        if key:
            said[key] = bound
    if name == "dppo":
        said[f"{ALGORITHM}.dppo.dppo_type"] = str(ours.surrogate).replace("dppo", "binary")
    if ours.dual_clip is not None:
        said[f"{ALGORITHM}.clip_ratio_c"] = ours.dual_clip
    return said | dict(_correction(ours.sampler_correction))


def _loss_type(spec: Spec) -> str:
    ours = spec.objective
    if ours.dual_clip is not None:
        return "dual_clip"
    if ours.surrogate in ("dppo_tv", "dppo_kl"):
        return "dppo"
    for name, loss in LOSSES.items():
        if loss.surrogate == (ours.surrogate or "ppo") and loss.level in (
            ours.ratio_level,
            ours.ratio_level or "token",
        ):
            return name
    text = f"objective.surrogate = {ours.surrogate} of {ours.ratio_level} ratios: no policy_loss_type"
    raise Unsayable(text, "objective.surrogate", "objective.ratio_level")


def _correction(text: str | None) -> Iterator[tuple[str, Any]]:
    """The off-policy correction's settings. Source: see `meaning.corrections`."""
    for part in filter(None, (text or "").split("; ")):
        found = re.fullmatch(r"(token|sequence)_([a-z_]+) \[(\S+), (\S+)\]", part)
        low, high = (
            (None if bound == "-" else _number(bound) for bound in (found[3], found[4])) if found else (None, None)
        )
        match found and (found[1], found[2]):
            case (level, "truncate") if low is None and high is not None:
                yield f"{CORRECTION}.tis_ratio_type", level
                yield f"{CORRECTION}.{level}_tis_ratio_clip_high", high
                continue
            case ("sequence", "mask" | "geometric_mask" as word) if None not in (low, high):
                yield f"{CORRECTION}.sequence_mask_metric", "product" if word == "mask" else "geometric"
                prefix = f"{CORRECTION}.{'product' if word == 'mask' else 'geo'}_mask"
            case ("token", "mask") if None not in (low, high):
                prefix = f"{CORRECTION}.token_mask_is_threshold"
            case ("sequence", "outlier_mask"):
                prefix = f"{CORRECTION}.outlier_token_is_threshold"
            case _:
                raise Unsayable(f"off_policy_correction has no {part}", "objective.sampler_correction")
        yield f"{prefix}_low", low
        yield f"{prefix}_high", high


def _number(text: str, field: str = "objective.sampler_correction") -> float:
    try:
        return float(text)
    except ValueError:
        raise Unsayable(f"{text} is no number", field) from None


def _sampled(spec: Spec) -> dict[str, Any]:
    rollout, carried, stale = spec.rollout, spec.carried, spec.staleness
    said: dict[str, Any] = {
        BETAS: [0.9 if carried.beta1 is None else carried.beta1, 0.999 if carried.beta2 is None else carried.beta2],
        STEPWISE: rollout.sample_unit == "turn",
        NEW_TOKENS: carried.max_completion_tokens,
        MASKED: rollout.group_filter == "mask_zero_variance" or None,
        ENTRY: {"bounded": FULLY_ASYNC, "lookahead": LOOKAHEAD}.get(stale.mode, MAIN),
    }
    if rollout.sample_unit == "trajectory" or (rollout.sample_unit == "turn" and carried.max_total_tokens):
        said[TURNS] = 2  # how many turns there may be is no batch setting
        if carried.max_total_tokens:
            said[INPUT_TOKENS] = carried.max_prompt_tokens or 512
            said[NEW_TOKENS] = carried.max_total_tokens - said[INPUT_TOKENS]
            said[PROMPT_TOKENS] = said[INPUT_TOKENS]
    if stale.mode != "sync":
        said["trainer.placement.colocate_all"] = False
    if stale.mode == "bounded" and stale.maximum is not None:
        mini = (spec.optimizer_step.completions_per_step or 0) // rollout.completions_per_prompt
        said |= {f"{ASYNC}.enabled": True, f"{ASYNC}.max_staleness_steps": stale.maximum}
        said[f"{ASYNC}.num_parallel_generation_workers"] = max(mini, 1)
        if rollout.group_filter == "drop_zero_variance":
            said |= {MASKED: True, f"{ASYNC}.sample_full_batch": True}
    elif rollout.group_filter == "drop_zero_variance":
        said[SAMPLING] = "filter"
    return said


def _opened(spec: Spec) -> dict[str, Any]:
    """Terms that the schema has no word for, where their names are SkyRL's."""
    said: dict[str, Any] = {}
    for term in spec.open_terms:
        group, _, name = term.partition(": ")
        word, _, value = name.partition(" ")
        ahead = spec.staleness.mode != "sync"
        entry = next((entry for entry, own in ENTRIES.items() if own == name and ("async" in entry) == ahead), None)
        match group, word:
            case "rollout", _ if entry is not None:
                said[ENTRY] = entry
            case "rollout", "code":
                said[ENTRY] = value.removeprefix("of ")
            case "rollout", "zero_reward_on_non_stop":
                said["generator.zero_reward_on_non_stop"] = True
            case "objective", "adaptive_kl":
                said[f"{ALGORITHM}.kl_ctrl.type"] = "adaptive"
            case "objective", "temperature":
                said[f"{ALGORITHM}.temperature"] = _number(value, "open_terms")
            case "objective", _ if value:
                said[f"{ALGORITHM}.{word}"] = _number(value, "open_terms")
            case "carried", "min_p" | "repetition_penalty":
                said[f"{SAMPLES}.{word}"] = _number(value, "open_terms")
            case "carried", "reference_every_epoch":
                said["trainer.update_ref_every_epoch"] = True
            case _:
                pass  # what was written is read back, and a term that is not in it refuses the rest
    return said


def _names(spec: Spec, group: str) -> list[str]:
    return [term.partition(": ")[2] for term in spec.open_terms if term.startswith(f"{group}: ")]
