"""A canonical spec as Open-Instruct's settings."""

from __future__ import annotations

import math
from typing import Any

from batchbridge import Problem, Spec
from batchbridge.kit import Normaliser
from batchbridge.kit.key_table import written_by
from batchbridge.kit.schedules import schedule_parts, transformers_name
from batchbridge.kit.writing import Problems
from batchbridge_open_instruct.meaning import (
    GRPO_KEYS,
    KL_ESTIMATORS,
    OLMO_FLOOR,
    PPO_KEYS,
    PPO_KL,
    RHO,
    RHO_KEYS,
    RHO_WORDS,
)
from batchbridge_open_instruct.settings import GRPO, GRPO_FAST, IMPLIED, NEWEST, PPO, ROWS, SCRIPT, SCRIPTS, settings_of


def settings_for(spec: Spec, problems: Problems, checkout: str | None = None) -> dict[str, Any]:
    """The native settings of `checkout` (None: the newest) that come nearest to `spec`; whoever calls reads them back
    and compares."""
    critic = spec.advantage.baseline == "value"
    values = _ppo_settings(spec, problems) if critic else _grpo_settings(spec, problems)
    scripts = [script for script, checkouts in SCRIPTS.items() if checkout is None or checkout in checkouts]
    if not any((script == PPO) == critic for script in scripts):
        problems.insert(
            0,
            Problem(
                ("advantage.baseline",),
                f"advantage.baseline = {spec.advantage.baseline}: of open-instruct {checkout} only "
                f"{' and '.join(scripts)} is read, whose baseline is {'the mean of a group' if critic else 'a critic'}",
            ),
        )
    elif not critic and checkout is not None:
        _as_in(checkout, values, spec, problems)
    order = (SCRIPT, *dict.fromkeys(row.key for row in ROWS))
    return {key: values[key] for key in order if key in values}


_MISSING = object()


def _as_in(checkout: str, values: dict[str, Any], spec: Spec, problems: Problems) -> None:
    """Turns settings of the newest checkout into those of `checkout`; names what it cannot say."""
    rows, written = settings_of(checkout), dict(values)
    correction = spec.objective.sampler_correction
    if "truncated_importance_sampling_ratio_cap" in rows:
        said = {key: values.pop(key, 0.0) for key in RHO_KEYS}
        values.pop("use_rho_correction", None)
        cap = said.pop("rho_clamp_upper_bound")
        if correction is not None and (cap <= 0 or any(said.values())):
            problems.add(
                f"objective.sampler_correction = {correction}: open-instruct {checkout} has a cap only",
                "objective.sampler_correction",
            )
        elif correction is not None:
            values["truncated_importance_sampling_ratio_cap"] = cap
    if "warm_up_steps" in rows and spec.carried.warmup_steps is not None:
        values["warm_up_steps"] = int(spec.carried.warmup_steps)
    if "kl_estimator" in values and rows["kl_estimator"].kind == "text":
        values["kl_estimator"] = f"kl{values['kl_estimator'] + 1}"
    if "load_ref_policy" not in rows:
        values.pop("load_ref_policy")  # a reference is always loaded; beta says whether it counts
    implied = IMPLIED.get(checkout, {})
    for key in [key for key in values if key != SCRIPT and key not in rows]:
        value = values.pop(key)
        if implied.get(key, _MISSING) != value:
            problems.no_setting(f"{key} {value}: open-instruct {checkout} has no such setting", key, written, NEWEST)


def _horizon(spec: Spec, problems: Problems) -> int:
    completions = spec.completions_per_rollout
    if completions is None or spec.horizon.rollouts is None:
        problems.add(
            "horizon: total_episodes counts completions of whole rollouts; give horizon.rollouts", "horizon.rollouts"
        )
        return 0
    return spec.horizon.rollouts * completions


def _schedule_settings(spec: Spec, script: str, problems: Problems) -> dict[str, Any]:
    return {
        "lr_scheduler_type": _schedule_name(spec, script, problems),
        "warmup_ratio": spec.carried.warmup_ratio,
    }


def _grpo_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    rollout, step, objective, carried = spec.rollout, spec.optimizer_step, spec.objective, spec.carried
    completions = spec.completions_per_rollout
    parts = step.parts_per_rollout or 1
    if step.parts_per_rollout is None and step.completions_per_step != completions:
        problems.add(
            f"optimizer_step.completions_per_step = {step.completions_per_step}: a step trains on a whole rollout "
            f"({completions} completions), or on a number of parts (num_mini_batches)",
            "optimizer_step.completions_per_step",
        )
    if spec.micro_batch.tokens_per_device is None:
        problems.add(
            "micro_batch.tokens_per_device: rows are packed to pack_length tokens; give a token budget",
            "micro_batch.tokens_per_device",
        )
    script = GRPO if spec.horizon.lr_tick == "rollout" else GRPO_FAST
    values: dict[str, Any] = {
        **written_by(GRPO_KEYS, spec, problems),
        SCRIPT: script,
        "num_learners_per_node": [spec.topology.world_size],
        "sequence_parallel_size": spec.topology.context_parallel,
        "active_sampling": rollout.group_filter == "replace_zero_variance",
        "filter_zero_std_samples": rollout.group_filter != "none",
        "num_mini_batches": parts,
        "pack_length": spec.micro_batch.tokens_per_device,
        "per_device_train_batch_size": 1,
        "total_episodes": _horizon(spec, problems),
        "use_vllm_logprobs": objective.old_logprobs == "sampler",
        **_schedule_settings(spec, script, problems),
    }
    if spec.topology.context_parallel > 1:
        values["deepspeed_stage"] = 3
    on = objective.kl_placement not in ("none", None)
    values["load_ref_policy"] = on
    values["beta"] = (
        objective.kl_coefficient if on and objective.kl_coefficient is not None else 0.0 if not on else None
    )
    if on and objective.kl_estimator in KL_ESTIMATORS:
        values["kl_estimator"] = KL_ESTIMATORS.index(objective.kl_estimator)
    values["clip_lower"] = objective.clip_low
    if carried.weight_decay_excludes != "nothing":
        values["weight_decay"] = carried.weight_decay
    rho = _rho_settings(objective.sampler_correction)
    if rho is None:
        problems.add(
            f"objective.sampler_correction = {objective.sampler_correction}: not one that can be said",
            "objective.sampler_correction",
        )
    values |= rho or {}
    policy = spec.loss.policy
    if policy.aggregation == "token_sum":
        values["loss_denominator"] = "1"
    elif policy.aggregation == "sequence_sum_over_constant" and completions and policy.constant:
        values["loss_denominator"] = str(completions * policy.constant)
    else:
        values["loss_denominator"] = "token"
    if (every := carried.reference_sync_steps) is not None:
        values["ref_policy_update_freq"] = max(1, math.ceil(every / max(1, parts * step.passes_per_rollout)))
    return {key: value for key, value in values.items() if value is not None or key == "max_grad_norm"}


def _ppo_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    rollout, objective = spec.rollout, spec.objective
    world = max(spec.topology.world_size, 1)
    prompts, per_step = rollout.prompts_per_rollout or 0, spec.optimizer_step.completions_per_step or 0
    for name, total in (
        ("rollout.prompts_per_rollout", prompts),
        ("optimizer_step.completions_per_step", per_step),
    ):
        if not total or total % world:
            problems.add(f"{name} = {total}: each of {world} learners takes an equal share", name)
    kl = {canonical: native for native, canonical in PPO_KL.items()}.get(objective.kl_estimator or "k1")
    values = {
        **written_by(PPO_KEYS, spec, problems),
        SCRIPT: PPO,
        "actor_num_gpus_per_node": [spec.topology.world_size],
        "local_rollout_batch_size": prompts // world,
        "local_mini_batch_size": per_step // world,
        "total_episodes": _horizon(spec, problems),
        "kl_estimator": kl,
        "warm_up_steps": None if spec.carried.warmup_steps is None else int(spec.carried.warmup_steps),
        **_schedule_settings(spec, PPO, problems),
    }
    return {key: value for key, value in values.items() if value is not None}


def _schedule_name(spec: Spec, script: str, problems: Problems) -> str | None:
    """`lr_scheduler_type` of `script`; None where the spec says nothing, or nothing that can be said."""
    if spec.carried.lr_schedule is None:
        return None
    try:
        name, arguments = schedule_parts(spec.carried.lr_schedule)
    except ValueError as error:
        problems.add(f"carried.lr_schedule = {spec.carried.lr_schedule}: {error}", "carried.lr_schedule")
        return None
    if script == GRPO:
        if name == "cosine_with_min_lr" and arguments == {"min_lr_rate": OLMO_FLOOR}:
            return "cosine"
        warms_up = False  # OLMo-core's constant schedule warms up as well
    else:
        warms_up = bool(spec.carried.warmup_steps or spec.carried.warmup_ratio)
    if arguments:
        problems.add(
            f"carried.lr_schedule = {spec.carried.lr_schedule}: open-instruct takes no such arguments",
            "carried.lr_schedule",
        )
        return None
    return transformers_name(name, warms_up=warms_up)


def _rho_settings(text: str | None) -> dict[str, Any] | None:
    """The settings that a correction's `text` stands for; None where it is not of that form."""
    if text is None:
        return {"use_rho_correction": False}
    values: dict[str, Any] = {**dict.fromkeys(RHO_KEYS, 0.0), "use_rho_correction": True}
    for part in text.split("; "):
        match = RHO_WORDS.fullmatch(part)
        if match is None:
            return None
        try:
            bounds = [0.0 if bound == "-" else float(bound) for bound in match.groups()[1:]]
        except ValueError:
            return None
        values |= dict(zip(RHO[match[1]], bounds, strict=True))
    return values


def denominator(step: Normaliser) -> str:
    """What `loss_denominator` says for a step of the plan: the one number that divides its sum."""
    return "token" if step.aggregation == "token_mean" else repr(1.0 / step.step_factor())
