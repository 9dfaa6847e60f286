"""A specification in NeMo-RL's settings, where no row of `settings` says it. The kit reads back what is written, so
that nothing here refuses what comes back as something else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from batchbridge import Spec
from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.schedules import WARMUP_START, schedule_parts
from batchbridge_nemo_rl import settings as keys

NODE = 8
COLOCATED = "policy.generation.colocated."
REWARD = "env.reward_model.resources."
_BOUND = r"(-|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
_PAIR = rf"\[{_BOUND}, {_BOUND}\]"
CORRECTED = re.compile(rf"(?:token|sequence)_truncate {_PAIR}(?:; (token|sequence|sequence_geometric)_mask {_PAIR})?")
"""The texts of `objective.sampler_correction` that NeMo-RL has settings for; a bound of - is none."""


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
    nodes, own_nodes, each = native["cluster.num_nodes"], policy_nodes(native), native["cluster.gpus_per_node"]
    count = int((nodes - own_nodes) * each)
    if nodes == 1 and has_reward_model(native):
        count += native[f"{REWARD}gpus_per_node"] or 0
    if not native[f"{COLOCATED}enabled"]:
        apart = native[f"{COLOCATED}resources.{'gpus_per_node' if own_nodes == 1 else 'num_nodes'}"] or 0
        count += apart if own_nodes == 1 else apart * each
    return count


def restate(spec: Spec) -> dict[str, Any]:
    """Settings by key. Raises `Unsayable`."""
    settings: dict[str, Any] = {}
    for part in (_devices, _engine, _rollouts, _objective, _correction, _kl, _optimizer, _run, _opened):
        settings |= part(spec)
    return settings


def _devices(spec: Spec) -> dict[str, Any]:
    world = spec.topology.world_size
    nodes = world // NODE if world % NODE == 0 else 1
    each, several = world // nodes, nodes > 1
    if not _ahead(spec):
        return {"cluster.num_nodes": nodes, "cluster.gpus_per_node": each}
    return {  # one node more, or as many devices more on one, to generate
        f"{COLOCATED}enabled": False,
        f"{COLOCATED}resources.gpus_per_node": each,
        f"{COLOCATED}resources.num_nodes": 1 if several else None,
        "policy.generation.vllm_cfg.async_engine": True,
        "cluster.num_nodes": nodes + several,
        "cluster.gpus_per_node": each if several else each * 2,
    }


def _ahead(spec: Spec) -> bool:
    """Whether generation has devices of its own: ahead, or in the order of async_rl."""
    return spec.staleness.mode != "sync" or any(term.startswith("staleness: async_rl") for term in spec.open_terms)


def megatron(spec: Spec) -> bool:
    """Whether only Megatron can train it."""
    return spec.carried.weight_decay_excludes == "biases_and_norms" or spec.topology.pipeline_parallel > 1


def _engine(spec: Spec) -> dict[str, Any]:
    """The engine, with what it has settings of its own for, and how it cuts micro-batches."""
    own, micro, values = megatron(spec), spec.micro_batch, spec.values
    settings: dict[str, Any] = {f"{keys.MEGATRON}enabled": own, f"{keys.DTENSOR}enabled": not own}
    for path, key in keys.ENGINES["megatron" if own else "dtensor"].items():
        settings[key] = keys.FACTS["settings"][key][1] if values[path] is None else values[path]
    settings[keys.MICRO] = micro.completions_per_device or 1
    settings[keys.FORWARD] = micro.forward_completions_per_device or settings[keys.MICRO]
    for group, counted in keys.COUNTED.items():
        settings[f"policy.{group}.enabled"] = micro.tokens_per_device is not None and micro.tokens_counted == counted
        if settings[f"policy.{group}.enabled"]:
            settings[f"policy.{group}.train_mb_tokens"] = micro.tokens_per_device
            settings[f"policy.{group}.logprob_mb_tokens"] = micro.forward_tokens_per_device or micro.tokens_per_device
    return settings


def _rollouts(spec: Spec) -> dict[str, Any]:
    ours, factor = spec.rollout, 1.0
    prompts, generated = ours.prompts_per_rollout, ours.prompts_per_generation_batch
    filtered = ours.group_filter == "replace_zero_variance"
    if filtered and generated and prompts:
        factor = generated / prompts
        factor = factor if int(prompts * factor) == generated else (generated + 0.5) / prompts
    return {
        "grpo.use_dynamic_sampling": filtered,
        "grpo.batch_multiplier": factor,
        "grpo.max_rollout_turns": 1 if ours.sample_unit == "completion" else 2,
    }


def _objective(spec: Spec) -> dict[str, Any]:
    ours, path = spec.objective, "objective.surrogate"
    if ours.surrogate not in (None, "ppo", "cispo", "reinforce"):
        raise Unsayable(f"{path} = {ours.surrogate}: NeMo-RL has ppo, cispo, reinforce", path, nearest=({path: "ppo"},))
    switches = (ours.surrogate == "cispo", ours.surrogate == "reinforce", ours.old_logprobs == "detached")
    return {
        **dict(zip(keys.SURROGATE, switches, strict=True)),
        keys.SEQUENCES: ours.ratio_level == "sequence",
        "loss_fn.ratio_clip_c": ours.dual_clip,
        "loss_fn.ratio_clip_min": 0.2 if ours.clip_low is None else ours.clip_low,
        "loss_fn.ratio_clip_max": 0.2 if ours.clip_high is None else ours.clip_high,
    }


def _correction(spec: Spec) -> dict[str, Any]:
    text = spec.objective.sampler_correction
    if text is None:
        return {keys.CORRECTION[0]: False}
    found = CORRECTED.fullmatch(text)
    if found is None:
        field = "objective.sampler_correction"
        raise Unsayable(f"NeMo-RL has no {text}", field, nearest=({field: None},))
    low, high, mask, least, most = found.groups()
    kind = None if (low, high) == ("-", "-") else "tis"
    if mask:
        kind, low, high = "seq-mask-tis" if mask == "sequence_geometric" else "icepop", least, most
    bounds = (None if bound == "-" else float(bound) for bound in (high, low))
    return dict(zip(keys.CORRECTION, (True, kind, *bounds), strict=True))


def _kl(spec: Spec) -> dict[str, Any]:
    ours, (penalty, kind, reward), path = spec.objective, keys.KL, "objective.kl_estimator"
    if ours.kl_placement in (None, "none"):
        return {penalty: 0.0}
    rewarded = ours.kl_placement == "reward"
    kinds = {word: native for native, word in (keys.NO_SCORE if rewarded else keys.WITH_SCORE).items()}
    if ours.kl_estimator is not None and ours.kl_estimator not in kinds:
        raise Unsayable(
            f"{path} = {ours.kl_estimator}: NeMo-RL has {', '.join(kinds)}",
            path,
            nearest=({path: kind} for kind in kinds),
        )
    settings = {reward: rewarded, penalty: ours.kl_coefficient or 0.0, kind: kinds.get(ours.kl_estimator or "", "k3")}
    for side, (field, _) in keys.CLAMPS.items() if not rewarded else ():
        bound = getattr(ours, field)
        settings[f"loss_fn.kl_{side}_clamp_value"] = UNREACHED if bound is None else bound
    return settings


def _optimizer(spec: Spec) -> dict[str, Any]:
    ours, path = spec.carried, "carried.lr_schedule"
    try:
        name, arguments = schedule_parts(ours.lr_schedule or "constant")
    except ValueError as error:
        raise Unsayable(f"{path}: {error}", path) from None
    warm, start = ours.warmup_steps or 0.0, float(arguments.get(WARMUP_START, 0.0))
    if warm % 1:
        field = "carried.warmup_steps"
        raise Unsayable(f"{field} = {warm}: NeMo-RL counts it whole", field, nearest=({field: float(round(warm))},))
    if megatron(spec):
        own, plan, router = f"{keys.MEGATRON}optimizer.", f"{keys.MEGATRON}scheduler.", ours.router_loss_coefficient
        peak = 5e-6 if ours.learning_rate is None else ours.learning_rate
        return {
            f"{own}optimizer": "adam" if ours.optimizer in (None, "adamw") else ours.optimizer,
            f"{own}min_lr": float(arguments["min_lr_rate"]) * peak if "min_lr_rate" in arguments else None,
            f"{own}clip_grad": ours.max_gradient_norm or 0.0,
            f"{plan}lr_decay_style": name,
            f"{plan}lr_decay_iters": arguments.get("decay_iters"),
            f"{plan}lr_warmup_iters": int(warm),
            f"{plan}lr_warmup_init": float(f"{start * peak:.12g}"),
            f"{keys.MEGATRON}moe_router_load_balancing_type": "none" if router is None else "aux_loss",
            f"{keys.MEGATRON}moe_aux_loss_coeff": router,
        }
    if name != "constant" or set(arguments) - {WARMUP_START}:
        raise Unsayable(f"{path} = {ours.lr_schedule}: only constant is written", path, nearest=({path: "constant"},))
    rise = {"start_factor": start or 1e-8, "end_factor": 1.0, "total_iters": int(warm)}
    schedule = [
        *([{"name": f"{keys.SCHEDULER}LinearLR", "kwargs": rise}] if warm else []),
        {"name": f"{keys.SCHEDULER}ConstantLR", "kwargs": {"factor": 1.0, "total_iters": 10_000_000_000}},
        {"milestones": [int(warm)] if warm else []},
    ]
    betas = zip((ours.beta1, ours.beta2), (0.9, 0.999), strict=True)
    return {
        "policy.optimizer.name": "torch.optim.AdamW" if ours.optimizer in (None, "adamw") else ours.optimizer,
        "policy.optimizer.kwargs.betas": [usual if beta is None else beta for beta, usual in betas],
        "policy.scheduler": schedule,
    }


def _run(spec: Spec) -> dict[str, Any]:
    stale, total = spec.staleness, spec.carried.longest_tokens
    if stale.mode != "sync" and not stale.maximum:
        path = "staleness.maximum"
        one = {"staleness.maximum": 1}
        raise Unsayable(f"{path}: samples may be one version old at least", path, "staleness.mode", nearest=(one,))
    return {
        "grpo.async_grpo.enabled": stale.mode != "sync",
        "grpo.async_grpo.max_trajectory_age_steps": stale.maximum or None,
        "grpo.max_num_epochs": int(spec.horizon.epochs or keys.ENDLESS),
        **({"policy.max_total_sequence_length": total} if spec.carried.max_total_tokens is None and total else {}),
    }


def _opened(spec: Spec) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for term in spec.open_terms:
        group, _, name = term.partition(": ")
        key, _, value = name.partition(" ")
        if group == "advantage" and name in ("gdpo", "reinforce_plus_plus", "opd"):
            settings["grpo.adv_estimator.name"] = name
        elif keys.FACTS["open"].get(key, ("",))[0] == group and value:
            settings[key] = json.loads(value)
        else:
            raise Unsayable(f"open_terms has {term}, and NeMo-RL has no such term", "open_terms")
    if "async_rl.sampler.name" in settings:
        settings |= {
            "grpo.async_grpo.enabled": False,
            "async_rl.sampler.max_lookahead_versions": spec.staleness.maximum,
        }
    return settings


def hydra_value(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(part)}" for key, part in value.items()) + "}"
    return json.dumps(value)
