"""The meaning of NeMo-RL's settings where no row of `settings` says it. Source: v0.7.0, the symbols named at each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.schedules import WARMUP_START, schedule_text, share_of_peak
from batchbridge.kit.values import FieldValue, by
from batchbridge_nemo_rl import settings as keys

NemoSettings = Mapping[str, Any]


def derive(native: NemoSettings) -> dict[str, FieldValue]:
    """Canonical values by field. Raises `ValueError` for a schedule that the schema cannot say."""
    if native["on_policy_distillation.enabled"]:
        raise ValueError("on_policy_distillation: its teachers take devices and give advantages of their own")
    values = _own(native, "topology.")
    optimizer = _megatron_optimizer if native[f"{keys.MEGATRON}enabled"] else _torch_optimizer
    for part in (_micro_batches, _rollouts, _objective, _kl, optimizer, _staleness):
        values |= part(native)
    return values | {"open_terms": by(tuple(sorted(open_terms(native))), "by name", *keys.FACTS["open"])}


def _is(native: NemoSettings, key: str) -> FieldValue:
    return FieldValue(native[key], key)


def engine(native: NemoSettings) -> Mapping[str, str]:
    """Canonical fields that the engine which trains has settings of its own for, and these. Source: Policy.__init__."""
    return keys.ENGINES["megatron" if native[f"{keys.MEGATRON}enabled"] else "dtensor"]


def _own(native: NemoSettings, group: str) -> dict[str, FieldValue]:
    return {path: _is(native, key) for path, key in engine(native).items() if path.startswith(group)}


def _micro_batches(native: NemoSettings) -> dict[str, FieldValue]:
    unit, train, forward, cut = "completions", keys.MICRO, keys.FORWARD, {}
    for group, counted in keys.COUNTED.items():
        if native[on := f"policy.{group}.enabled"]:
            unit, train, forward = "tokens", f"policy.{group}.train_mb_tokens", f"policy.{group}.logprob_mb_tokens"
            cut["micro_batch.tokens_counted"] = by(counted, f"{group} counts {counted} tokens", on)
    switches = tuple(f"policy.{group}.enabled" for group in keys.COUNTED)
    values = {f"micro_batch.{unit}_per_device": FieldValue(native[train], train, None, switches), **cut}
    size = native[forward]
    return values | {
        f"micro_batch.forward_{unit}_per_device": FieldValue(None if size == native[train] else size, forward)
    }


def _rollouts(native: NemoSettings) -> dict[str, FieldValue]:
    """Async runs and several loaders count no epochs. Source: grpo.dynamic_sampling, setup for the generated batch;
    async_grpo_train, grpo_train's warning."""
    switch, factor, prompts = "grpo.use_dynamic_sampling", "grpo.batch_multiplier", "grpo.num_prompts_per_step"
    steps, endless, values = "grpo.max_num_steps", is_async(native) or native["data.use_multiple_dataloader"], {}
    if native["grpo.max_rollout_turns"] > 1:
        values["rollout.sample_unit"] = by("trajectory", "several turns in one sequence", "grpo.max_rollout_turns")
    if native[switch]:
        values["rollout.group_filter"] = FieldValue("replace_zero_variance", switch)
        generated = int(native[prompts] * native[factor])
        if generated != native[prompts]:
            values["rollout.prompts_per_generation_batch"] = by(generated, "int(prompts x factor)", prompts, factor)
    if endless:
        values["horizon.epochs"] = by(None, "only steps are counted", "grpo.async_grpo.enabled", steps)
    if endless or min(native[steps], native["grpo.max_num_epochs"]) >= keys.ENDLESS:
        values["horizon.rollouts"] = _is(native, steps)
    return values


def _objective(native: NemoSettings) -> dict[str, FieldValue]:
    """Source: ClippedPGLossFn."""
    cispo, plain, forced = (native[key] for key in keys.SURROGATE)
    name = "cispo" if cispo else "reinforce" if plain and not forced else "ppo"
    values = {
        "surrogate": by(name, "by its switches", *keys.SURROGATE),
        "ratio_level": by(keys.LEVELS[native[keys.SEQUENCES]], "sequence or token", keys.SEQUENCES),
        "old_logprobs": by("detached" if forced else "rollout_start", "forced to 1, or not", keys.SURROGATE[2]),
        "sampler_correction": by(correction(native), "the correction's settings", *keys.CORRECTION),
    }
    if not plain or forced:
        values |= {
            "clip_low": _is(native, "loss_fn.ratio_clip_min"),
            "clip_high": _is(native, "loss_fn.ratio_clip_max"),
        }
    values["dual_clip"] = _is(native, "loss_fn.ratio_clip_c")
    return {f"objective.{field}": entry for field, entry in values.items()}


def correction(native: NemoSettings) -> str | None:
    """The words of `objective.sampler_correction`."""
    level, (on, kind, high, low) = keys.LEVELS[native[keys.SEQUENCES]], (native[key] for key in keys.CORRECTION)
    if not on:
        return None
    least = "-" if low is None or (kind == "tis" and low <= 0) else low
    if kind == "tis":
        return f"{level}_truncate [{least}, {high}]"
    masks = {"icepop": f"{level}_mask", "seq-mask-tis": "sequence_geometric_mask"}
    return f"{level}_truncate [-, -]" + (f"; {masks[kind]} [{least}, {high}]" if kind else "")


def _kl(native: NemoSettings) -> dict[str, FieldValue]:
    """In the reward only Reinforce++ asks for it. Source: ClippedPGLossFn.__init__, ReinforcePlusPlus..."""
    penalty, kind, reward = keys.KL
    rewarded = native[reward]
    values = {"kl_placement": by("none", "no penalty", penalty), "kl_coefficient": by(0.0, "none", penalty)}
    if native[penalty] and (not rewarded or native["grpo.adv_estimator.name"] == "reinforce_plus_plus"):
        values["kl_placement"] = FieldValue("reward" if rewarded else "loss", reward)
        values["kl_coefficient"] = _is(native, penalty)
        values["kl_estimator"] = FieldValue((keys.NO_SCORE if rewarded else keys.WITH_SCORE)[native[kind]], kind)
        for side, (field, fixed) in keys.CLAMPS.items():
            bound = native[key := f"loss_fn.kl_{side}_clamp_value"]
            said = FieldValue(None if bound is None or bound >= UNREACHED else bound, key)
            values[field] = by(fixed, "calculate_kl's own", reward) if rewarded else said
    return {f"objective.{field}": entry for field, entry in values.items()}


def _megatron_optimizer(native: NemoSettings) -> dict[str, FieldValue]:
    own, plan, router = (f"{keys.MEGATRON}{group}" for group in ("optimizer.", "scheduler.", "moe_"))
    shape = tuple(f"{plan}{end}" for end in ("lr_decay_style", "lr_warmup_init", "lr_decay_iters"))
    style, start, length = (native[key] for key in shape)
    peak, warms, name = native[f"{own}lr"], native[f"{plan}lr_warmup_iters"], native[f"{own}optimizer"]
    arguments: dict[str, Any] = {}
    if warms and start and start != peak:
        arguments[WARMUP_START] = share_of_peak(start, peak)
    if style != "constant":
        arguments |= {"min_lr_rate": share_of_peak(native[f"{own}min_lr"], peak), "decay_iters": length}
    values = {
        "optimizer": FieldValue("adamw" if name == "adam" else name, f"{own}optimizer"),
        "weight_decay_excludes": by("biases_and_norms", "Megatron's groups of parameters", f"{keys.MEGATRON}enabled"),
        "lr_schedule": FieldValue(schedule_text(style, arguments), shape[0], None, shape[1:]),
        "warmup_steps": FieldValue(float(warms), f"{plan}lr_warmup_iters"),
    }
    if native[f"{router}router_load_balancing_type"] != "none" and native[f"{router}aux_loss_coeff"]:
        coefficient = _is(native, f"{router}aux_loss_coeff")
        values["router_loss_coefficient"] = coefficient._replace(others=(f"{router}router_load_balancing_type",))
    return _own(native, "carried.") | {f"carried.{field}": entry for field, entry in values.items()}


def _torch_optimizer(native: NemoSettings) -> dict[str, FieldValue]:
    name, betas = native["policy.optimizer.name"], native[key := "policy.optimizer.kwargs.betas"]
    if not isinstance(betas, list) or len(betas) != 2 or not all(isinstance(one, (int, float)) for one in betas):
        raise ValueError(f"{key}: two numbers were expected")
    schedule, ticks = torch_schedule(native["policy.scheduler"])
    return _own(native, "carried.") | {
        "carried.optimizer": FieldValue("adamw" if name == "torch.optim.AdamW" else name, "policy.optimizer.name"),
        "carried.weight_decay_excludes": by("nothing", "all parameters in one group", f"{keys.DTENSOR}enabled"),
        **{f"carried.beta{place}": FieldValue(float(beta), key) for place, beta in enumerate(betas, 1)},
        "carried.lr_schedule": FieldValue(schedule, "policy.scheduler"),
        "carried.warmup_steps": FieldValue(ticks, "policy.scheduler"),
        "objective.nonfinite_step": by("apply", "a DTensor worker steps whatever the norm", f"{keys.DTENSOR}enabled"),
    }


def torch_schedule(plan: Any) -> tuple[str, float]:
    """The schedule and its warm-up (ticks) of `policy.scheduler`. Raises `ValueError` for another than a linear warm-up
    and then a constant. Source: DTensorPolicyWorker.__init__."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        steps = [plan] if isinstance(plan, dict) else list(plan or [])
        parts = {part["name"].removeprefix(keys.SCHEDULER): dict(part["kwargs"]) for part in steps if "name" in part}
        cuts = [cut for part in steps for cut in part.get("milestones", [])]
        warm, rest = parts.pop("LinearLR", None), parts.pop("ConstantLR", {"factor": 1.0})
        same = not warm or (warm.get("end_factor", 1.0) == 1.0 and cuts == [warm.get("total_iters", 5)])
        if not parts and same and rest.get("factor", 1 / 3) == 1.0:
            start = float(warm.get("start_factor", 1 / 3)) if warm else 0.0
            arguments = {WARMUP_START: start} if 0.0 < start < 1.0 else {}
            return schedule_text("constant", arguments), float(cuts[0] if warm else 0)
    raise ValueError("policy.scheduler: only a linear warm-up and then a constant is read")


def is_async(native: NemoSettings) -> bool:
    """Whether generation runs ahead of training."""
    return bool(native["grpo.async_grpo.enabled"] or native["async_rl.sampler.name"])


def _staleness(native: NemoSettings) -> dict[str, FieldValue]:
    """Source: async_grpo_train (age of weights), single_controller on main (async_rl)."""
    if not is_async(native):
        return {}
    age = "grpo.async_grpo.max_trajectory_age_steps"
    for key in ("async_rl.sampler.max_lookahead_versions", "async_rl.sampler.max_staleness_versions"):
        age = key if native["async_rl.sampler.name"] and native[key] is not None else age
    if not native[age]:  # the next batch waits for the weights
        return {"staleness.maximum": FieldValue(0, age)}
    return {
        "staleness.mode": by("bounded", "generation runs ahead", "grpo.async_grpo.enabled"),
        "staleness.maximum": _is(native, age),
        "staleness.unit": by("weight_versions", "versions of the weights", age),
    }


def open_terms(native: NemoSettings) -> Iterator[str]:
    """Names of what the schema has no word for: "group: key value", the value as JSON; an estimator's alone."""
    for key, (group, off, *switch) in keys.FACTS["open"].items():
        value = native[key]
        if value is not None and value is not False and value != off and all(native[one] for one in switch):
            alone = key == "grpo.adv_estimator.name"
            yield f"{group}: {value}" if alone else f"{group}: {key} {json.dumps(value, default=str)}"
