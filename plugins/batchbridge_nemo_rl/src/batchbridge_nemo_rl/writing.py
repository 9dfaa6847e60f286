"""A specification in NeMo-RL's settings, where no row of `settings` says it. The kit reads back what is written, so
that nothing here refuses what comes back as something else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from batchbridge import Spec
from batchbridge.kit.clipping import UNREACHED, native_bound
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.omegaconf import number
from batchbridge.kit.schedules import WARMUP_START, schedule_parts
from batchbridge_nemo_rl.meaning import NO_SCORE, SCHEDULER, WITH_SCORE
from batchbridge_nemo_rl.settings import DTENSOR, ENDLESS, MEGATRON, OPEN

NODE = 8
COLOCATED = "policy.generation.colocated."
REWARD = "env.reward_model.resources."


def policy_nodes(native: Mapping[str, Any]) -> int:
    """Nodes that train or generate: those of a reward model are others, but where there is one node for all."""
    nodes = int(native["cluster.num_nodes"])
    return nodes if nodes == 1 else nodes - (native[f"{REWARD}num_nodes"] or 0) * has_reward_model(native)


def has_reward_model(native: Mapping[str, Any]) -> bool:
    """Whether a reward model takes devices. Source: extract_necessary_env_names."""
    return "reward_model" in (native[f"data.{part}.env_name"] for part in ("train", "validation", "default"))


def not_training(native: Mapping[str, Any]) -> int:
    """Devices of the cluster that do not train: those that only generate, and a reward model's. NeMo-Gym's nodes are
    none of the cluster's: they come beside it. Source: grpo.setup."""
    nodes, each = native["cluster.num_nodes"], native["cluster.gpus_per_node"]
    count = int((nodes - policy_nodes(native)) * each)
    if nodes == 1 and has_reward_model(native):
        count += native[f"{REWARD}gpus_per_node"] or 0
    if not native[f"{COLOCATED}enabled"]:
        alone = policy_nodes(native) == 1
        own = native[f"{COLOCATED}resources.{'gpus_per_node' if alone else 'num_nodes'}"] or 0
        count += own if alone else own * each
    return count


def restate(spec: Spec) -> dict[str, Any]:
    """Settings by key. Raises `Unsayable`."""
    said: dict[str, Any] = {}
    for part in (_devices, _sizes, _objective, _correction, _kl, _optimizer, _run, _opened):
        said |= part(spec)
    return said


def _devices(spec: Spec) -> dict[str, Any]:
    world, ahead = spec.topology.world_size, spec.staleness.mode != "sync"
    nodes = world // NODE if world % NODE == 0 else 1
    if not ahead:
        return {"cluster.num_nodes": nodes, "cluster.gpus_per_node": world // nodes}
    said: dict[str, Any] = {f"{COLOCATED}enabled": False, "policy.generation.vllm_cfg.async_engine": True}
    each = world // nodes  # one node more, or as many devices more on one, to generate
    extra = {"gpus_per_node": each, "num_nodes": 1 if nodes > 1 else None}
    said |= {f"{COLOCATED}resources.{name}": value for name, value in extra.items()}
    return said | {"cluster.num_nodes": nodes + (nodes > 1), "cluster.gpus_per_node": each * (1 if nodes > 1 else 2)}


def megatron(spec: Spec) -> bool:
    """Whether only Megatron can train it."""
    return spec.carried.weight_decay_excludes == "biases_and_norms" or spec.topology.pipeline_parallel > 1


def _sizes(spec: Spec) -> dict[str, Any]:
    engine, topology, micro = megatron(spec), spec.topology, spec.micro_batch
    head, end = (MEGATRON, "tensor_model_parallel_size") if engine else (DTENSOR, "tensor_parallel_size")
    said: dict[str, Any] = {
        f"{MEGATRON}enabled": engine,
        f"{DTENSOR}enabled": not engine,
        f"{head}{end}": topology.tensor_parallel,
        f"{head}context_parallel_size": topology.context_parallel,
        "policy.dynamic_batching.enabled": False,
        "policy.sequence_packing.enabled": False,
    }
    if engine:
        said[f"{MEGATRON}pipeline_model_parallel_size"] = topology.pipeline_parallel
    alone = micro.completions_per_device or 1
    said["policy.train_micro_batch_size"] = alone
    said["policy.logprob_batch_size"] = micro.forward_completions_per_device or alone
    if micro.tokens_per_device is not None:
        group = "dynamic_batching" if micro.tokens_counted == "padded" else "sequence_packing"
        forward = micro.forward_tokens_per_device or micro.tokens_per_device
        said[f"policy.{group}.enabled"] = True
        said |= {
            f"policy.{group}.train_mb_tokens": micro.tokens_per_device,
            f"policy.{group}.logprob_mb_tokens": forward,
        }
    prompts, generated = spec.rollout.prompts_per_rollout, spec.rollout.prompts_per_generation_batch
    filtered = spec.rollout.group_filter == "replace_zero_variance"
    said |= {"grpo.use_dynamic_sampling": filtered, "grpo.batch_multiplier": 1.0}
    if filtered and generated and prompts:
        factor = generated / prompts
        said["grpo.batch_multiplier"] = factor if int(prompts * factor) == generated else (generated + 0.5) / prompts
    said["grpo.max_rollout_turns"] = 1 if spec.rollout.sample_unit == "completion" else 2
    return said


def _objective(spec: Spec) -> dict[str, Any]:
    ours = spec.objective
    if ours.surrogate not in (None, "ppo", "cispo", "reinforce"):
        raise Unsayable(
            f"objective.surrogate = {ours.surrogate}: NeMo-RL has ppo, cispo, reinforce", "objective.surrogate"
        )
    said: dict[str, Any] = {
        "loss_fn.use_cispo": ours.surrogate == "cispo",
        "loss_fn.disable_ppo_ratio": ours.surrogate == "reinforce",
        "loss_fn.sequence_level_importance_ratios": ours.ratio_level == "sequence",
        "loss_fn.force_on_policy_ratio": ours.old_logprobs == "detached",
        "loss_fn.ratio_clip_c": ours.dual_clip,
    }
    for side, bound in (("min", ours.clip_low), ("max", ours.clip_high)):
        said[f"loss_fn.ratio_clip_{side}"] = 0.2 if bound is None else bound
    return said


def _correction(spec: Spec) -> dict[str, Any]:
    text = spec.objective.sampler_correction
    found = re.fullmatch(
        r"(?:token|sequence)_truncate \[(?P<low>\S+), (?P<high>\S+)\]"
        r"(?:; (?P<mask>token|sequence|sequence_geometric)_mask \[(?P<least>\S+), (?P<most>\S+)\])?",
        text or "",
    )
    said: dict[str, Any] = {"loss_fn.use_importance_sampling_correction": text is not None}
    if text is None:
        return said
    if found is None:
        raise Unsayable(f"NeMo-RL has no {text}", "objective.sampler_correction")
    head, kind = "loss_fn.truncated_importance_sampling_", None
    low, high = (found["least"], found["most"]) if found["mask"] else (found["low"], found["high"])
    if found["mask"]:
        kind = "seq-mask-tis" if found["mask"] == "sequence_geometric" else "icepop"
    elif (low, high) != ("-", "-"):
        kind = "tis"
    bounds = [None if bound == "-" else _real(bound) for bound in (low, high)]
    return said | {f"{head}type": kind, f"{head}ratio_min": bounds[0], f"{head}ratio": bounds[1]}


def _real(text: str) -> float:
    found = number(text)
    return float(text) if found is None and text.isdigit() else found or 0.0


def _kl(spec: Spec) -> dict[str, Any]:
    ours = spec.objective
    if ours.kl_placement in (None, "none"):
        return {"loss_fn.reference_policy_kl_penalty": 0.0}
    reward = ours.kl_placement == "reward"
    kinds = {word: kind for kind, word in (NO_SCORE if reward else WITH_SCORE).items()}
    if ours.kl_estimator is not None and ours.kl_estimator not in kinds:
        raise Unsayable(
            f"objective.kl_estimator = {ours.kl_estimator}: NeMo-RL has {', '.join(kinds)}", "objective.kl_estimator"
        )
    bounds = {} if reward else {"input": ours.kl_log_ratio_clamp, "output": ours.kl_clamp}
    return {
        "loss_fn.use_kl_in_reward": reward,
        "loss_fn.reference_policy_kl_penalty": ours.kl_coefficient or 0.0,
        "loss_fn.reference_policy_kl_type": kinds.get(ours.kl_estimator or "", "k3"),
        **{f"loss_fn.kl_{side}_clamp_value": UNREACHED if bound is None else bound for side, bound in bounds.items()},
    }


def _optimizer(spec: Spec) -> dict[str, Any]:
    ours = spec.carried
    try:
        name, arguments = schedule_parts(ours.lr_schedule or "constant")
    except ValueError as error:
        raise Unsayable(f"carried.lr_schedule: {error}", "carried.lr_schedule") from None
    warm, peak = ours.warmup_steps or 0.0, 5e-6 if ours.learning_rate is None else ours.learning_rate
    if warm % 1:
        raise Unsayable(f"carried.warmup_steps = {warm}: NeMo-RL counts it whole", "carried.warmup_steps")
    start = float(arguments.get(WARMUP_START, 0.0))
    betas = [0.9 if ours.beta1 is None else ours.beta1, 0.999 if ours.beta2 is None else ours.beta2]
    epsilon = 1e-8 if ours.optimizer_epsilon is None else ours.optimizer_epsilon
    decay = 0.01 if ours.weight_decay is None else ours.weight_decay
    if megatron(spec):
        own, plan = f"{MEGATRON}optimizer.", f"{MEGATRON}scheduler."
        floor = {"min_lr": float(arguments["min_lr_rate"]) * peak} if "min_lr_rate" in arguments else {}
        values: dict[str, Any] = {
            "lr": peak,
            "weight_decay": decay,
            "adam_beta1": betas[0],
            "adam_beta2": betas[1],
            "adam_eps": epsilon,
        }
        values |= floor | {"clip_grad": 0.0 if ours.max_gradient_norm is None else ours.max_gradient_norm}
        values["optimizer"] = "adam" if ours.optimizer in (None, "adamw") else ours.optimizer
        steps = {"lr_decay_style": name, "lr_warmup_iters": int(warm), "lr_warmup_init": float(f"{start * peak:.12g}")}
        said = {f"{own}{key}": value for key, value in values.items()} | {
            f"{plan}{key}": value for key, value in steps.items()
        }
        if "decay_iters" in arguments:
            said[f"{plan}lr_decay_iters"] = arguments["decay_iters"]
        return said | _router(ours.router_loss_coefficient)
    if name != "constant" or set(arguments) - {WARMUP_START}:
        raise Unsayable(f"carried.lr_schedule = {ours.lr_schedule}: only constant is written", "carried.lr_schedule")
    constant = {"name": f"{SCHEDULER}ConstantLR", "kwargs": {"factor": 1.0, "total_iters": 10_000_000_000}}
    rise = {"start_factor": start or 1e-8, "end_factor": 1.0, "total_iters": int(warm)}
    return {
        "policy.optimizer.name": "torch.optim.AdamW" if ours.optimizer in (None, "adamw") else ours.optimizer,
        "policy.optimizer.kwargs.lr": peak,
        "policy.optimizer.kwargs.weight_decay": decay,
        "policy.optimizer.kwargs.betas": betas,
        "policy.optimizer.kwargs.eps": epsilon,
        "policy.max_grad_norm": native_bound(1.0 if ours.max_gradient_norm is None else ours.max_gradient_norm),
        "policy.scheduler": [{"name": f"{SCHEDULER}LinearLR", "kwargs": rise}, constant, {"milestones": [int(warm)]}]
        if warm
        else [constant, {"milestones": []}],
    }


def _router(coefficient: float | None) -> dict[str, Any]:
    kind = "none" if coefficient is None else "aux_loss"
    return {f"{MEGATRON}moe_router_load_balancing_type": kind, f"{MEGATRON}moe_aux_loss_coeff": coefficient}


def _run(spec: Spec) -> dict[str, Any]:
    horizon, total = spec.horizon, spec.carried.longest_tokens
    ahead = spec.staleness.mode != "sync"
    said: dict[str, Any] = {"grpo.async_grpo.enabled": ahead, "grpo.max_num_epochs": int(horizon.epochs or ENDLESS)}
    if ahead and not spec.staleness.maximum:
        raise Unsayable(
            "staleness.maximum: samples may be one version old at least", "staleness.maximum", "staleness.mode"
        )
    if ahead:
        said["grpo.async_grpo.max_trajectory_age_steps"] = spec.staleness.maximum
    if spec.carried.max_total_tokens is None and total:
        said["policy.max_total_sequence_length"] = total
    return said


def _opened(spec: Spec) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for term in spec.open_terms:
        group, _, name = term.partition(": ")
        key, _, value = name.partition(" ")
        if group == "advantage" and name in ("gdpo", "reinforce_plus_plus", "opd"):
            said["grpo.adv_estimator.name"] = name
        elif OPEN.get(key, ("",))[0] == group and value:
            said[key] = json.loads(value)
        else:
            raise Unsayable(f"open_terms has {term}, and NeMo-RL has no such term", "open_terms")
    if "async_rl.sampler.name" in said:
        said |= {"grpo.async_grpo.enabled": False, "async_rl.sampler.max_lookahead_versions": spec.staleness.maximum}
    return said


def hydra_value(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(part)}" for key, part in value.items()) + "}"
    return "null" if value is None else json.dumps(value) if isinstance(value, (bool, str)) else repr(value)
