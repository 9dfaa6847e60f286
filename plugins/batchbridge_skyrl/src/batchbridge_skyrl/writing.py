"""A specification in SkyRL's settings, where no row of `settings` says it. What is written is read back by the kit, so
that nothing here refuses what comes back as something else."""

from __future__ import annotations

import re
from typing import Any

from batchbridge import Spec
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.omegaconf import number
from batchbridge_skyrl.meaning import CLIPS, CORRECTION, NAMED, SLICES
from batchbridge_skyrl.settings import ENDLESS, ENTRIES, FACTS, FULLY_ASYNC, LOOKAHEAD, MAIN, TOGETHER, full

NODE = 8
"""Devices of a node, where a specification says only how many there are."""
WORDS = {
    "token_truncate": "token_tis_ratio_clip",
    "sequence_truncate": "sequence_tis_ratio_clip",
    "sequence_mask": "product_mask",
    "sequence_geometric_mask": "geo_mask",
    "token_mask": "token_mask_is_threshold",
    "sequence_outlier_mask": "outlier_token_is_threshold",
}
"""Parts of `objective.sampler_correction`, and their bounds' beginning."""


def restate(spec: Spec) -> dict[str, Any]:
    """Settings by key. Raises `Unsayable`."""
    settings: dict[str, Any] = {}
    for part in (_devices, _sizes, _objective, _sampled, _correction, _opened):
        settings |= part(spec)
    return {full(end): value for end, value in settings.items()}


def _devices(spec: Spec) -> dict[str, Any]:
    """One set of devices for all models and, where generation does not run beside training, for the engines."""
    topology, world = spec.topology, spec.topology.world_size
    nodes = world // NODE if world % NODE == 0 else 1
    settings: dict[str, Any] = {"generator.inference_engine.num_engines": world}
    for model in ("policy", "ref", "critic"):
        settings |= {f"{model}_num_nodes": nodes, f"{model}_num_gpus_per_node": world // nodes}
    megatron = spec.carried.weight_decay_excludes == "biases_and_norms"
    for model in ("policy", "ref"):
        settings[f"{model}.sequence_parallel_size"] = 1 if megatron else topology.context_parallel
        for kind in ("tensor", "pipeline", "context") if megatron else ():
            name = f"{kind}_{'' if kind == 'context' else 'model_'}parallel_size"
            settings[f"{model}.megatron_config.{name}"] = getattr(topology, f"{kind}_parallel")
    if spec.carried.router_loss_coefficient is not None:
        settings["policy.megatron_config.moe_router_load_balancing_type"] = "aux_loss"
        settings["policy.megatron_config.moe_aux_loss_coeff"] = spec.carried.router_loss_coefficient
    return settings


def _sizes(spec: Spec) -> dict[str, Any]:
    size, group, micro = spec.optimizer_step.completions_per_step, spec.rollout.completions_per_prompt, spec.micro_batch
    if not size or size % group:
        path = "optimizer_step.completions_per_step"
        whole = {path: max((size or 0) // group, 1) * group}
        raise Unsayable(f"{path} = {size}: a mini-batch is whole groups of {group} completions", path, nearest=(whole,))
    critics = (spec.critic and spec.critic.completions_per_step) or size
    settings = {"policy_mini_batch_size": size // group, "critic_mini_batch_size": critics // group}
    settings["trainer.epochs"] = int(spec.horizon.epochs or ENDLESS)
    if micro.tokens_per_device is not None:
        return settings | {"max_tokens_per_microbatch": micro.tokens_per_device}
    alone = micro.completions_per_device or 1
    forward = micro.forward_completions_per_device or alone
    return settings | {"micro_train_batch_size_per_gpu": alone, "micro_forward_batch_size_per_gpu": forward}


def _objective(spec: Spec) -> dict[str, Any]:
    ours = spec.objective
    settings: dict[str, Any] = {"algorithm.max_seq_len": spec.loss.policy.constant}
    if ours.kl_placement in ("loss", "reward"):
        settings |= {"kl_estimator_type": ours.kl_estimator, "kl_loss_coef": ours.kl_coefficient}
    if ours.entropy_coefficient:
        settings |= {"use_entropy_loss": True, "entropy_loss_coef": ours.entropy_coefficient}
    if ours.dual_clip is not None:
        settings |= {"policy_loss_type": "dual_clip", "clip_ratio_c": ours.dual_clip}
    values = {path: getattr(ours, path.partition(".")[2]) for path in TOGETHER[3].fields}
    if clip := CLIPS.get(TOGETHER[3].says(values)[full("policy_loss_type")]):
        settings |= {f"{clip}_low": ours.clip_low, f"{clip}_high": ours.clip_high}
    if spec.advantage.baseline == "none" and spec.rollout.completions_per_prompt == 1:
        settings["advantage_estimator"] = "grpo"
    if spec.critic is not None:
        settings |= {key: getattr(spec.critic, field) for field, key in FACTS["critic"].items()}
        settings["trainer.critic.model.path"] = FACTS["settings"]["trainer.policy.model.path"][1]
    first, second = spec.carried.beta1, spec.carried.beta2
    settings["policy.optimizer_config.adam_betas"] = [
        0.9 if first is None else first,
        0.999 if second is None else second,
    ]
    return settings


def _sampled(spec: Spec) -> dict[str, Any]:
    rollout, carried, stale = spec.rollout, spec.carried, spec.staleness
    program = {"bounded": FULLY_ASYNC, "lookahead": LOOKAHEAD}.get(stale.mode, MAIN)
    length = "generator.sampling_params.max_generate_length"
    settings: dict[str, Any] = {length: carried.max_completion_tokens, "entrypoint": program}
    settings |= {"step_wise_trajectories": rollout.sample_unit == "turn"}
    if carried.max_total_tokens is not None and rollout.sample_unit != "completion":
        prompt = carried.max_prompt_tokens or 1
        settings |= {"max_turns": 2, "max_input_length": prompt, length: max(carried.max_total_tokens - prompt, 1)}
    if stale.mode != "sync":
        settings["colocate_all"] = False
    if stale.mode == "bounded":
        settings |= {"fully_async.enabled": True, "max_staleness_steps": stale.maximum}
        settings["num_parallel_generation_workers"] = rollout.prompts_per_rollout
        if rollout.group_filter == "replace_zero_variance":
            settings |= {"dynamic_sampling.type": None, "zero_variance_filter": True, "sample_full_batch": True}
    return settings


def _correction(spec: Spec) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in filter(None, (spec.objective.sampler_correction or "").split("; ")):
        found = re.fullmatch(r"(\w+) \[(-|[\d.e+-]+), (-|[\d.e+-]+)\]", part)
        if found is None or found[1] not in WORDS:
            field = "objective.sampler_correction"
            raise Unsayable(f"SkyRL has no {part}", field, nearest=({field: None},))
        level, _, kind = found[1].partition("_")
        for side, bound in (("low", found[2]), ("high", found[3])):
            settings |= {} if bound == "-" else {f"{CORRECTION}.{WORDS[found[1]]}_{side}": number(bound)}
        if kind == "truncate":
            settings["tis_ratio_type"] = level
        elif found[1] in ("sequence_mask", "sequence_geometric_mask"):
            settings["sequence_mask_metric"] = "product" if kind == "mask" else "geometric"
    return settings


def _opened(spec: Spec) -> dict[str, Any]:
    """Terms whose names are SkyRL's. Estimators and losses of a program of its own come with the program."""
    settings: dict[str, Any] = {}
    names = {(group, key.rpartition(".")[2]): key for key, (group, *_) in FACTS["open"].items()}
    names |= {("objective", "temperature"): "trainer.algorithm.temperature"}
    own = any(term.startswith(("rollout: code ", "rollout: teacher_kl")) for term in spec.open_terms)
    ahead = spec.staleness.mode != "sync"
    for term in spec.open_terms:
        group, _, name = term.partition(": ")
        end, _, value = name.partition(" ")
        entries = [entry for entry, does in ENTRIES.items() if does == name and ("async" in entry) == ahead]
        if group == "rollout" and (entries or end == "code"):
            settings["entrypoint"] = entries[0] if entries else value
        elif (group, end) in names:
            flags, amount = {"True": True, "False": False}, number(value)
            settings[names[group, end]] = flags.get(value, value if amount is None else amount)
        elif term == "advantage: maxrl" or (own and group in NAMED.values()):
            settings |= {setting: name for setting, of in NAMED.items() if of == group}
        elif term != SLICES:
            raise Unsayable(f"open_terms has {term}, and SkyRL has no such term", "open_terms")
    return settings
