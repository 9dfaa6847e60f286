"""A canonical spec as Open-Instruct's settings."""

from __future__ import annotations

import math
from typing import Any

from batchbridge import Problem, Spec
from batchbridge.kit import Normaliser
from batchbridge.kit.even_sizes import even_sizes
from batchbridge.kit.key_table import written_by
from batchbridge.kit.schedules import transformers_name
from batchbridge.kit.writing import Problems
from batchbridge_open_instruct import settings as tables
from batchbridge_open_instruct.meaning import CAP, EXCLUDES, KL_ESTIMATORS, OLMO_FLOOR, PPO_KL, RHO, RHO_KEYS, RHO_WORDS
from batchbridge_open_instruct.settings import GRPO, GRPO_FAST, PPO, SCRIPT, rows_of
from batchbridge_open_instruct.values import TEXT

CORRECTION = "objective.sampler_correction"


def settings_for(spec: Spec, problems: Problems, checkout: str) -> dict[str, Any]:
    """The native settings of `checkout` that come nearest to `spec`; whoever calls reads them back and compares."""
    critic = spec.advantage.baseline == "value"
    if not critic and checkout not in tables.SCRIPTS[GRPO]:
        counts = f"open-instruct {checkout} has {GRPO_FAST} alone, which counts optimizer steps"
        ticks = ("optimizer_step",)
        problems.fits(spec.horizon.lr_tick != "rollout", "horizon.lr_tick", counts, ticks)
    values = _ppo_settings(spec, problems) if critic else _grpo_settings(spec, problems)
    scripts = [script for script, checkouts in tables.SCRIPTS.items() if checkout in checkouts]
    if not any((script == PPO) == critic for script in scripts):
        reason = (
            f"advantage.baseline = {spec.advantage.baseline}: of open-instruct {checkout} only "
            f"{' and '.join(scripts)} is read, whose baseline is {'the mean of a group' if critic else 'a critic'}"
        )
        other = {"advantage.baseline": "group_mean", "critic.": None} if critic else {"advantage.baseline": "value"}
        problems.insert(0, Problem(("advantage.baseline",), reason, (other,)))
    elif not critic:
        _as_in(checkout, values, spec, problems)
    order = (SCRIPT, *dict.fromkeys(row.key for row in (*tables.GRPO_ROWS, *tables.PPO_ROWS)))
    return {key: values[key] for key in order if key in values}


def _as_in(checkout: str, values: dict[str, Any], spec: Spec, problems: Problems) -> None:
    """Turns settings of the newest checkout into those of `checkout`; names what it cannot say."""
    rows, written = rows_of(checkout), dict(values)
    correction = spec.objective.sampler_correction
    if CAP in rows:
        settings = {key: values.pop(key, 0.0) for key in RHO_KEYS}
        values.pop("use_rho_correction", None)
        cap = settings.pop("rho_clamp_upper_bound")
        if correction is not None:
            problems.fits(
                cap > 0 and not any(settings.values()), CORRECTION, f"open-instruct {checkout} has a cap only", (None,)
            )
            values[CAP] = cap
    if "warm_up_steps" in rows and spec.carried.warmup_steps is not None:
        values["warm_up_steps"] = int(spec.carried.warmup_steps)
    if "kl_estimator" in values and rows["kl_estimator"].kind is TEXT:
        values["kl_estimator"] = f"kl{values['kl_estimator'] + 1}"
    if rows["load_ref_policy"].fixed:
        values.pop("load_ref_policy")  # a reference is always loaded; beta says whether it counts
    for key in [key for key in values if key != SCRIPT and (key not in rows or rows[key].fixed)]:
        value = values.pop(key)
        if key not in rows or rows[key].default != value:
            reason = f"{key} {value}: open-instruct {checkout} has no such setting"
            problems.no_setting(reason, key, written, tables.NEWEST)


def _shared_settings(spec: Spec, checkout: str, script: str, problems: Problems) -> dict[str, Any]:
    """Settings that say one field each, the length of the run and the learning rate's schedule."""
    completions, rollouts = spec.completions_per_rollout, spec.horizon.rollouts
    problems.need(
        completions is not None,
        "rollout.prompts_per_rollout is open: total_episodes counts completions of whole rollouts",
        "rollout.prompts_per_rollout",
    )
    problems.need(
        rollouts is not None,
        "horizon: total_episodes counts completions of whole rollouts; give horizon.rollouts",
        "horizon.rollouts",
    )
    return {
        **written_by(rows_of(checkout).values(), spec, problems),
        SCRIPT: script,
        "total_episodes": (rollouts or 0) * (completions or 0),
        "lr_scheduler_type": _schedule_name(spec, script, problems),
        "warmup_ratio": spec.carried.warmup_ratio,
    }


def _grpo_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    rollout, step, objective, carried = spec.rollout, spec.optimizer_step, spec.objective, spec.carried
    completions, parts = spec.completions_per_rollout, step.parts_per_rollout or 1
    path, settings = "optimizer_step.completions_per_step", step.completions_per_step
    as_parts = max(round((completions or 0) / settings), 1) if settings else 1
    problems.need(
        step.parts_per_rollout is not None or settings == completions,
        f"{path} = {settings}: a step trains on a whole rollout ({completions} completions), or on a number of parts "
        "(num_mini_batches)",
        path,
        nearest=({path: None, "optimizer_step.parts_per_rollout": as_parts},),
    )
    longest = (carried.max_prompt_tokens or 256) + (carried.max_completion_tokens or 256)
    budget = {
        "micro_batch.completions_per_device": None,
        "micro_batch.tokens_per_device": longest * (spec.micro_batch.completions_per_device or 1),
        "micro_batch.cap": "hard",
    }
    problems.need(
        spec.micro_batch.tokens_per_device is not None,
        "micro_batch.tokens_per_device: rows are packed to pack_length tokens; give a token budget",
        "micro_batch.tokens_per_device",
        nearest=(budget,),
    )
    tokens = spec.micro_batch.tokens_per_device
    holds_one = f"micro_batch.tokens_per_device = {tokens}: pack_length holds the longest sequence, {longest} tokens"
    fits = tokens is None or tokens >= longest
    problems.need(
        fits, holds_one, "micro_batch.tokens_per_device", nearest=({"micro_batch.tokens_per_device": longest},)
    )
    on = objective.kl_placement not in ("none", None)
    values: dict[str, Any] = {
        **_shared_settings(spec, tables.NEWEST, GRPO if spec.horizon.lr_tick == "rollout" else GRPO_FAST, problems),
        **_rho_settings(objective.sampler_correction, problems),
        "num_learners_per_node": [spec.topology.world_size],
        "sequence_parallel_size": spec.topology.context_parallel,
        "deepspeed_stage": 3 if spec.topology.context_parallel > 1 else None,
        "active_sampling": rollout.group_filter == "replace_zero_variance",
        "filter_zero_std_samples": rollout.group_filter != "none",
        "num_mini_batches": parts,
        "pack_length": spec.micro_batch.tokens_per_device,
        "per_device_train_batch_size": 1,
        "use_vllm_logprobs": objective.old_logprobs == "sampler",
        "load_ref_policy": on,
        "beta": objective.kl_coefficient if on else 0.0,
        "loss_denominator": "token",
    }
    if on and objective.kl_estimator in KL_ESTIMATORS:
        values["kl_estimator"] = KL_ESTIMATORS.index(objective.kl_estimator)
    if carried.weight_decay_excludes == "nothing":
        values[EXCLUDES] = False
    else:
        values["weight_decay"] = carried.weight_decay
    policy = spec.loss.policy
    if policy.aggregation == "token_sum":
        values["loss_denominator"] = "1"
    elif policy.aggregation == "sequence_sum_over_constant" and completions and policy.constant:
        values["loss_denominator"] = str(completions * policy.constant)
    if (every := carried.reference_sync_steps) is not None:
        values["ref_policy_update_freq"] = max(1, math.ceil(every / max(1, parts * step.passes_per_rollout)))
    return {key: value for key, value in values.items() if value is not None}


def _ppo_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    world = max(spec.topology.world_size, 1)
    prompts, per_step = spec.rollout.prompts_per_rollout or 0, spec.optimizer_step.completions_per_step or 0
    for name, total in (("rollout.prompts_per_rollout", prompts), ("optimizer_step.completions_per_step", per_step)):
        share = f"{name} = {total}: each of {world} learners takes an equal share"
        problems.need(total > 0 and total % world == 0, share, name, nearest=even_sizes(spec, whole_rollouts=True))
    estimator, warmup = spec.objective.kl_estimator or "k1", spec.carried.warmup_steps
    values = {
        **_shared_settings(spec, tables.NEWEST_PPO, PPO, problems),
        "actor_num_gpus_per_node": [spec.topology.world_size],
        "local_rollout_batch_size": prompts // world,
        "local_mini_batch_size": per_step // world,
        "kl_estimator": next((native for native, canonical in PPO_KL.items() if canonical == estimator), None),
        "warm_up_steps": None if warmup is None else int(warmup),
    }
    return {key: value for key, value in values.items() if value is not None}


def _schedule_name(spec: Spec, script: str, problems: Problems) -> str | None:
    """`lr_scheduler_type` of `script`; None where the spec says nothing, or nothing that can be said."""
    carried = spec.carried
    parts = None if carried.lr_schedule is None else problems.schedule(carried.lr_schedule)
    if parts is None:
        return None
    name, arguments = parts
    if script == GRPO and name == "cosine_with_min_lr" and arguments == {"min_lr_rate": OLMO_FLOOR}:
        return "cosine"
    if not problems.fits(not arguments, "carried.lr_schedule", "open-instruct takes no such arguments", (name,)):
        return None
    # OLMo-core's constant schedule warms up as well.
    return transformers_name(name, warms_up=script != GRPO and bool(carried.warmup_steps or carried.warmup_ratio))


def _rho_settings(text: str | None, problems: Problems) -> dict[str, Any]:
    """The settings that a correction's `text` stands for; a problem where it is not of that form."""
    if text is None:
        return {"use_rho_correction": False}
    values: dict[str, Any] = {**dict.fromkeys(RHO_KEYS, 0.0), "use_rho_correction": True}
    for part in text.split("; "):
        if (match := RHO_WORDS.fullmatch(part)) is None:
            problems.fits(False, CORRECTION, "not one that can be said", (None,))
            return {}
        lower, upper = RHO[match["word"]]
        values[lower], values[upper] = (0.0 if match[key] == "-" else float(match[key]) for key in ("lower", "upper"))
    return values


def denominator(step: Normaliser) -> str:
    """The `loss_denominator` of a step of the plan: the one number that divides its sum."""
    return "token" if step.aggregation == "token_mean" else repr(1.0 / step.step_factor())
