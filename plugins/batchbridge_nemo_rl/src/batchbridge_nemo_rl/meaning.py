"""What NeMo-RL's settings mean where no row of `settings` says it. Source: v0.7.0, the symbols named at each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.schedules import WARMUP_START, schedule_text
from batchbridge.kit.values import Told
from batchbridge_nemo_rl.settings import DTENSOR, ENDLESS, MEGATRON, OPEN

Native = Mapping[str, Any]
SCHEDULER = "torch.optim.lr_scheduler."
NO_SCORE = {"k1": "k1", "k2": "k2", "k3": "k3"}
WITH_SCORE = {"k1": "k1_with_score", "k2": "k2_with_score", "k3": "k3+"}
"""The loss multiplies the estimate by exp(log p - log p, detached). Source: ClippedPGLossFn.__call__."""
SWITCHES = {
    "grpo.reward_scaling.": "grpo.reward_scaling.enabled",
    "grpo.reward_shaping.": "grpo.reward_shaping.enabled",
}


def derive(native: Native) -> dict[str, Told]:
    """Canonical values by field. Raises `ValueError` for a schedule that the schema cannot say."""
    if native["on_policy_distillation.enabled"]:
        raise ValueError("on_policy_distillation: its teachers take devices and give advantages of their own")
    told: dict[str, Told] = {}
    for part in (_sizes, _advantage, _objective, _kl, _optimizer, _staleness):
        told |= part(native)
    opened = tuple(sorted(open_terms(native)))
    return told | {"open_terms": _by(opened, "by name", *(key for key in OPEN if key in native))}


def _is(native: Native, key: str) -> Told:
    return Told(native[key], key)


def _by(value: Any, formula: str, *keys: str) -> Told:
    return Told(value, None, formula, keys)


def is_megatron(native: Native) -> bool:
    """Whether Megatron trains. Source: Policy.__init__."""
    return bool(native[f"{MEGATRON}enabled"])


def parallel(native: Native) -> dict[str, str]:
    """The settings of each kind of parallelism."""
    if is_megatron(native):
        names = {kind: f"{MEGATRON}{kind}_model_parallel_size" for kind in ("tensor", "pipeline")}
        return {**names, "context": f"{MEGATRON}context_parallel_size"}
    return {kind: f"{DTENSOR}{kind}_parallel_size" for kind in ("tensor", "context")}


def _sizes(native: Native) -> dict[str, Told]:
    told = {f"topology.{kind}_parallel": _is(native, key) for kind, key in parallel(native).items()}
    for group, counted in (("dynamic_batching", "padded"), ("sequence_packing", "real")):
        tokens, forward, on = (f"policy.{group}.{end}" for end in ("train_mb_tokens", "logprob_mb_tokens", "enabled"))
        if native[on]:
            told["micro_batch.tokens_per_device"] = _is(native, tokens)
            told["micro_batch.tokens_counted"] = _by(counted, f"{group} counts {counted} tokens", on)
            if native[forward] != native[tokens]:
                told["micro_batch.forward_tokens_per_device"] = _is(native, forward)
            return told | _filter(native)
    told["micro_batch.completions_per_device"] = _is(native, "policy.train_micro_batch_size")
    if native["policy.logprob_batch_size"] != native["policy.train_micro_batch_size"]:
        told["micro_batch.forward_completions_per_device"] = _is(native, "policy.logprob_batch_size")
    return told | _filter(native)


def _filter(native: Native) -> dict[str, Told]:
    """Source: grpo.dynamic_sampling; setup for the generated batch."""
    switch, factor, prompts = "grpo.use_dynamic_sampling", "grpo.batch_multiplier", "grpo.num_prompts_per_step"
    told: dict[str, Told] = {}
    if native["grpo.max_rollout_turns"] > 1:
        told["rollout.sample_unit"] = _by("trajectory", "several turns in one sequence", "grpo.max_rollout_turns")
    if native[switch]:
        told["rollout.group_filter"] = Told("replace_zero_variance", switch)
        generated = int(native[prompts] * native[factor])
        if generated != native[prompts]:
            told["rollout.prompts_per_generation_batch"] = _by(generated, "int(prompts x factor)", prompts, factor)
    return told


def _advantage(native: Native) -> dict[str, Told]:
    """Async runs and several loaders count no epochs. Source: async_grpo_train, grpo_train's warning."""
    steps = native["grpo.max_num_steps"]
    told: dict[str, Told] = {}
    if is_async(native) or native["data.use_multiple_dataloader"]:
        told = {"horizon.epochs": _by(None, "only steps are counted", "grpo.async_grpo.enabled", "grpo.max_num_steps")}
        told["horizon.rollouts"] = _is(native, "grpo.max_num_steps")
    elif steps >= ENDLESS and native["grpo.max_num_epochs"] >= ENDLESS:
        told["horizon.rollouts"] = _is(native, "grpo.max_num_steps")
    return told


def _objective(native: Native) -> dict[str, Told]:
    """Source: ClippedPGLossFn."""
    loss = {key.removeprefix("loss_fn."): value for key, value in native.items() if key.startswith("loss_fn.")}
    switches = ("loss_fn.use_cispo", "loss_fn.disable_ppo_ratio", "loss_fn.force_on_policy_ratio")
    forced, plain = loss["force_on_policy_ratio"], loss["disable_ppo_ratio"]
    name = "cispo" if loss["use_cispo"] else "reinforce" if plain and not forced else "ppo"
    level = "sequence" if loss["sequence_level_importance_ratios"] else "token"
    told = {
        "surrogate": _by(name, "by its switches", *switches),
        "ratio_level": _by(level, "sequence or token", "loss_fn.sequence_level_importance_ratios"),
        "old_logprobs": _by("detached" if forced else "rollout_start", "forced to 1, or not", switches[2]),
        "sampler_correction": _by(
            correction(native), "the correction's settings", *(key for key in native if "importance_sampling" in key)
        ),
    }
    if not plain or forced:
        told |= {"clip_low": _is(native, "loss_fn.ratio_clip_min"), "clip_high": _is(native, "loss_fn.ratio_clip_max")}
    told["dual_clip"] = _is(native, "loss_fn.ratio_clip_c")
    return {f"objective.{field}": entry for field, entry in told.items()}


def correction(native: Native) -> str | None:
    """The words of `objective.sampler_correction`."""
    if not native["loss_fn.use_importance_sampling_correction"]:
        return None
    kind, high, low = (native[f"loss_fn.truncated_importance_sampling_{end}"] for end in ("type", "ratio", "ratio_min"))
    level = "sequence" if native["loss_fn.sequence_level_importance_ratios"] else "token"
    if kind is None:
        return f"{level}_truncate [-, -]"
    least = "-" if low is None or (kind == "tis" and low <= 0) else low
    if kind == "tis":
        return f"{level}_truncate [{least}, {high}]"
    mask = "sequence_geometric_mask" if kind == "seq-mask-tis" else f"{level}_mask"
    return f"{level}_truncate [-, -]; {mask} [{least}, {high}]"


def _kl(native: Native) -> dict[str, Told]:
    """In the reward only Reinforce++ asks for it. Source: ClippedPGLossFn.__init__, ReinforcePlusPlus..."""
    penalty, kind, reward = (
        f"loss_fn.{end}" for end in ("reference_policy_kl_penalty", "reference_policy_kl_type", "use_kl_in_reward")
    )
    acts = not native[reward] or native["grpo.adv_estimator.name"] == "reinforce_plus_plus"
    if not native[penalty] or not acts:
        return {
            "objective.kl_placement": _by("none", "no penalty", penalty),
            "objective.kl_coefficient": _by(0.0, "none", penalty),
        }
    words = NO_SCORE if native[reward] else WITH_SCORE
    told = {
        "kl_placement": Told("reward" if native[reward] else "loss", reward),
        "kl_coefficient": _is(native, penalty),
        "kl_estimator": Told(words[native[kind]], kind),
        "kl_log_ratio_clamp": _by(20.0, "calculate_kl's own", reward),
        "kl_clamp": _by(10.0, "calculate_kl's own", reward),
    }
    if not native[reward]:
        for field, side in (("kl_log_ratio_clamp", "input"), ("kl_clamp", "output")):
            bound = native[f"loss_fn.kl_{side}_clamp_value"]
            off = bound is None or bound >= UNREACHED
            told[field] = Told(None if off else bound, f"loss_fn.kl_{side}_clamp_value")
    return {f"objective.{field}": entry for field, entry in told.items()}


def _optimizer(native: Native) -> dict[str, Told]:
    if not is_megatron(native):
        return _torch_optimizer(native)
    own, plan = f"{MEGATRON}optimizer.", f"{MEGATRON}scheduler."
    names = {
        "learning_rate": "lr",
        "weight_decay": "weight_decay",
        "beta1": "adam_beta1",
        "beta2": "adam_beta2",
        "optimizer_epsilon": "adam_eps",
        "max_gradient_norm": "clip_grad",
    }
    told = {field: _is(native, own + name) for field, name in names.items()}
    told["optimizer"] = Told(
        {"adam": "adamw"}.get(native[f"{own}optimizer"], native[f"{own}optimizer"]), f"{own}optimizer"
    )
    told["weight_decay_excludes"] = _by("biases_and_norms", "Megatron's groups of parameters", f"{MEGATRON}enabled")
    style, peak, warms = native[f"{plan}lr_decay_style"], native[f"{own}lr"], native[f"{plan}lr_warmup_iters"]
    start = native[f"{plan}lr_warmup_init"] if warms else 0.0
    arguments: dict[str, Any] = {WARMUP_START: _share(start, peak)} if start and start != peak else {}
    if style != "constant":
        arguments |= {
            "min_lr_rate": _share(native[f"{own}min_lr"], peak),
            "decay_iters": native[f"{plan}lr_decay_iters"],
        }
    keys = [f"{plan}{end}" for end in ("lr_decay_style", "lr_warmup_init", "lr_decay_iters")]
    told["lr_schedule"] = Told(schedule_text(style, arguments), keys[0], None, tuple(keys[1:]))
    told["warmup_steps"] = Told(float(warms), f"{plan}lr_warmup_iters")
    if native[f"{MEGATRON}moe_router_load_balancing_type"] != "none" and native[f"{MEGATRON}moe_aux_loss_coeff"]:
        told["router_loss_coefficient"] = _is(native, f"{MEGATRON}moe_aux_loss_coeff")
    return {f"carried.{field}": entry for field, entry in told.items()}


def _share(rate: float, peak: float) -> float:
    return float(f"{rate / peak:.12g}") if peak else 0.0


def _torch_optimizer(native: Native) -> dict[str, Told]:
    own, name = "policy.optimizer.kwargs.", native["policy.optimizer.name"]
    names = {"learning_rate": "lr", "weight_decay": "weight_decay", "optimizer_epsilon": "eps"}
    told = {field: _is(native, own + end) for field, end in names.items()}
    told["optimizer"] = Told("adamw" if name == "torch.optim.AdamW" else name, "policy.optimizer.name")
    told["weight_decay_excludes"] = _by("nothing", "all parameters in one group", f"{DTENSOR}enabled")
    betas = native[f"{own}betas"]
    if not isinstance(betas, list) or len(betas) != 2 or not all(isinstance(one, (int, float)) for one in betas):
        raise ValueError(f"{own}betas: two numbers were expected")
    for place, beta in enumerate(betas, 1):
        told[f"beta{place}"] = Told(float(beta), f"{own}betas")
    schedule, ticks = torch_schedule(native["policy.scheduler"])
    told["lr_schedule"] = Told(schedule, "policy.scheduler")
    told["warmup_steps"] = Told(ticks, "policy.scheduler")
    return {f"carried.{field}": entry for field, entry in told.items()} | {
        "objective.nonfinite_step": _by("apply", "a DTensor worker steps whatever the norm", f"{DTENSOR}enabled")
    }


def torch_schedule(plan: Any) -> tuple[str, float]:
    """The schedule and its warm-up (ticks) of `policy.scheduler`. Raises `ValueError` for another than a linear warm-up
    and then a constant. Source: DTensorPolicyWorker.__init__."""
    try:
        steps = [plan] if isinstance(plan, dict) else list(plan or [])
        parts = {part["name"].removeprefix(SCHEDULER): dict(part["kwargs"]) for part in steps if "name" in part}
        cuts = [cut for part in steps for cut in part.get("milestones", [])]
        warm, rest = parts.pop("LinearLR", None), parts.pop("ConstantLR", {"factor": 1.0})
        same = not warm or (warm.get("end_factor", 1.0) == 1.0 and cuts == [warm.get("total_iters", 5)])
        if not parts and same and rest.get("factor", 1 / 3) == 1.0:
            start = float(warm.get("start_factor", 1 / 3)) if warm else 0.0
            arguments = {WARMUP_START: start} if 0.0 < start < 1.0 else {}
            return schedule_text("constant", None) + (f" {json.dumps(arguments)}" if arguments else ""), float(
                cuts[0] if warm else 0
            )
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise ValueError("policy.scheduler: only a linear warm-up and then a constant is read")


def is_async(native: Native) -> bool:
    """Whether generation runs ahead of training."""
    return bool(native["grpo.async_grpo.enabled"] or native["async_rl.sampler.name"])


def _staleness(native: Native) -> dict[str, Told]:
    """Source: async_grpo_train (age of weights), single_controller on main (async_rl)."""
    if not is_async(native):
        return {}
    age = "grpo.async_grpo.max_trajectory_age_steps"
    for key in ("async_rl.sampler.max_lookahead_versions", "async_rl.sampler.max_staleness_versions"):
        age = key if native["async_rl.sampler.name"] and native[key] is not None else age
    told = {"mode": _by("bounded", "generation runs ahead", "grpo.async_grpo.enabled"), "maximum": _is(native, age)}
    return {f"staleness.{field}": entry for field, entry in told.items()} | {
        "staleness.unit": _by("weight_versions", "versions of the weights", age)
    }


def open_terms(native: Native) -> list[str]:
    """Names of what the schema has no word for: "group: key value", the value as JSON; an estimator's alone."""
    found = []
    for key, (group, off) in OPEN.items():
        value = native.get(key)
        switched = all(native[switch] for head, switch in SWITCHES.items() if key.startswith(head))
        if switched and value is not None and value != off and value is not False:
            found.append(
                f"{group}: {value}"
                if key.endswith("adv_estimator.name")
                else f"{group}: {key} {json.dumps(value, default=str)}"
            )
    return found
