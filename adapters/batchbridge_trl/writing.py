"""A canonical spec as TRL's settings."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from batchbridge import Spec
from batchbridge.kit import LARGEST, LossTerm, MicroBatch
from batchbridge.kit.even_sizes import even_sizes
from batchbridge.kit.key_table import written_by
from batchbridge.kit.schedules import transformers_name
from batchbridge.kit.writing import Problems
from batchbridge_trl.meaning import CAP, CLIP_MAX, CLIP_MIN, FIXED_FIELDS, MODE, loss_types, shifted
from batchbridge_trl.settings import TRAINER_GROUPS, holds
from batchbridge_trl.sizes import ACCUMULATION, BATCH
from batchbridge_trl.tables import settings_of
from batchbridge_trl.values import too_large

EPSILON = 0.2
"""GRPOConfig's default bound of the ratio."""
_CORRECTION = re.compile(r"(\w+) \[(\S+), (\S+)\]")


def settings_for(spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
    """The native settings of `version` that say `spec`, without the world size; what they cannot say goes to
    `problems`, except where a version has no such key: reading the settings back shows that.

    A canonical None among objective and carried settings means unknown: TRL's default stays.
    """
    settings, rows = spec.values, settings_of(TRAINER_GROUPS, version)
    known = {path for path, value in settings.items() if value is not None}
    values = written_by((row for row in rows.values() if known.issuperset(row.fields)), spec, problems)
    _write_sizes(spec, values, problems)
    _write_horizon(spec, values, problems)
    _write_loss(spec, values, problems, version)
    _write_objective(spec, values, problems, version)
    _write_carried(spec, values, problems, version)
    for path, wanted in _allowed(version).items():
        problems.fits(settings.get(path) in wanted, path, f"trl has only {' or '.join(map(str, wanted))}", wanted)
    for path, value in settings.items():
        if isinstance(value, int) and too_large(value):
            problems.fits(False, path, f"trl takes integers of at most {LARGEST:,} in size", [value % (LARGEST + 1)])
    if holds("<1.6", version) and CLIP_MAX in values:
        values[CAP] = values.pop(CLIP_MAX)
    if spec.carried.router_loss_coefficient is None and holds(">=1.7,<1.14", version):
        values["router_aux_loss_coef"] = None  # its default was 0.001, and None is how TRL leaves the model's own
    return {key: value for key, value in values.items() if key in rows and not rows[key].fixed}


@lru_cache(maxsize=64)
def _allowed(version: str) -> dict[str, tuple[Any, ...]]:
    """Canonical fields that no setting decides in `version`, with the values that they may have."""
    given: dict[str, tuple[Any, ...]] = {g.path: (g.value,) for g in FIXED_FIELDS if holds(g.versions, version)}
    given |= {path: (*given[path], None) for path in _MAY_BE_UNKNOWN}
    cut = {} if holds("<0.26", version) else {"carried.max_prompt_tokens": (None,)}
    return {**_FIXED, **given, **cut}


_MAY_BE_UNKNOWN = ("advantage.epsilon", "advantage.ddof", "carried.weight_decay_excludes")


_FIXED: dict[str, tuple[Any, ...]] = {
    "topology.tensor_parallel": (1,),
    "topology.pipeline_parallel": (1,),
    "topology.context_parallel": (1,),
    "rollout.prompts_per_generation_batch": (None,),
    "rollout.sample_unit": ("completion",),
    "rollout.group_filter": ("none",),
    "optimizer_step.tokens_per_step": (None,),
    "optimizer_step.parts_per_rollout": (None,),
    "optimizer_step.micro_batches_per_step": (None,),
    "micro_batch.tokens_per_device": (None,),
    "micro_batch.forward_completions_per_device": (None,),
    "micro_batch.forward_tokens_per_device": (None,),
    "loss.policy.denominator_scope": ("optimizer_step",),
    "loss.policy.count_empty": (True,),
    "loss.kl": (None,),
    "loss.entropy": (None, LossTerm(aggregation="token_mean")),
    "advantage.baseline": ("group_mean",),
    "advantage.minimum": (None,),
    "advantage.maximum": (None,),
    "horizon.lr_tick": ("optimizer_step",),
    "staleness.mode": ("sync",),
    "objective.kl_clamp": (None,),
    "objective.reward_clip": (None,),
}
"""Canonical fields that every version of TRL fixes, with the values that it has; `FIXED_FIELDS` has the others."""


def _write_sizes(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    prompts, completions = spec.rollout.prompts_per_rollout, spec.optimizer_step.completions_per_step
    micro, world = spec.micro_batch.completions_per_device, spec.topology.world_size
    problems.given(prompts, "rollout.prompts_per_rollout")
    problems.given(completions, "optimizer_step.completions_per_step")
    if micro is None:  # TRL's own per_device_train_batch_size is 8
        one_size = ({"micro_batch.": MicroBatch(completions_per_device=8)},)
        is_open = "micro_batch.completions_per_device is open: trl needs a number"
        problems.add(is_open, "micro_batch.completions_per_device", nearest=one_size)
    if prompts is None or completions is None or micro is None:
        return
    if (per_micro_step := micro * world) > 0:
        values[ACCUMULATION] = completions // per_micro_step
    # Of the two exclusive settings the one that means the same on every world size.
    values[BATCH] = prompts * spec.rollout.completions_per_prompt
    for name, amount, fields in (
        ("optimizer_step.completions_per_step", completions, ("optimizer_step.completions_per_step",)),
        ("completions per rollout", values[BATCH], ("rollout.prompts_per_rollout",)),
    ):
        below = amount // per_micro_step * per_micro_step if per_micro_step else 0
        problems.need(
            per_micro_step > 0 and amount > 0 and amount % per_micro_step == 0,
            f"{name} = {amount}: must be a multiple of micro_batch.completions_per_device x topology.world_size = "
            f"{per_micro_step}; fix: {f'{below} or ' if below else ''}{below + per_micro_step}",
            *(*fields, "micro_batch.completions_per_device", "topology.world_size"),
            nearest=even_sizes(spec, whole_rollouts=True),
        )


def _write_horizon(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    horizon = spec.horizon
    reason = "horizon.rollouts: trl counts optimizer steps or epochs; give one of them instead"
    problems.need(horizon.rollouts is None, reason, "horizon.rollouts")
    if horizon.optimizer_steps is not None:
        reason = "horizon: epochs and optimizer_steps are both given; trl obeys the steps"
        problems.need(horizon.epochs is None, reason, "horizon.epochs", "horizon.optimizer_steps")
        problems.fits(horizon.optimizer_steps > 0, "horizon.optimizer_steps", "trl trains one step with max_steps = 0")
        values["max_steps"] = horizon.optimizer_steps
    elif horizon.epochs is not None:
        values["max_steps"] = -1
        values["num_train_epochs"] = horizon.epochs
    seed = ({"order.seed": 42},)  # TrainingArguments.seed
    problems.need(spec.order.seed is not None, "order.seed is open: trl always has one", "order.seed", nearest=seed)


def _write_loss(spec: Spec, values: dict[str, Any], problems: Problems, version: str) -> None:
    policy, surrogate = spec.loss.policy, spec.objective.surrogate or "ppo"
    known = loss_types(version).values()
    names = [loss.name for loss in known if loss.aggregation == policy.aggregation and loss.surrogate == surrogate]
    if problems.need(
        bool(names),
        f"loss.policy.aggregation = {policy.aggregation} with objective.surrogate = {surrogate}: trl has "
        + ", ".join(dict.fromkeys(f"{loss.aggregation} with {loss.surrogate}" for loss in known)),
        "loss.policy.aggregation",
        "objective.surrogate",
        nearest=(
            {"loss.policy.aggregation": loss.aggregation, "objective.surrogate": loss.surrogate}
            for loss in sorted(
                known, key=lambda loss: (loss.surrogate != surrogate, loss.aggregation != policy.aggregation)
            )
        ),
    ):
        values["loss_type"] = names[0]
    constant, limit = policy.constant, spec.carried.max_completion_tokens
    if policy.aggregation == "sequence_sum_over_constant":
        problems.need(
            constant is not None and limit in (constant, None),
            f"loss.policy.constant = {constant}: trl divides by carried.max_completion_tokens = {limit}",
            "loss.policy.constant",
            "carried.max_completion_tokens",
            nearest=({"loss.policy.constant": limit},) if limit else (),
        )
        if constant is not None:
            values["max_completion_length"] = constant
    else:
        problems.fits(constant is None, "loss.policy.constant", f"{policy.aggregation} has none", (None,))


def _write_objective(spec: Spec, values: dict[str, Any], problems: Problems, version: str) -> None:
    objective, surrogate = spec.objective, spec.objective.surrogate or "ppo"
    if surrogate == "ppo":
        for name in ("clip_low", "clip_high"):
            clips = getattr(objective, name) is not None or holds("<0.16", version)
            path = f"objective.{name}"
            problems.need(clips, f"{path} is off: trl always clips", path, nearest=({path: EPSILON},))
        values |= {"epsilon": objective.clip_low, "epsilon_high": objective.clip_high, "delta": objective.dual_clip}
    else:
        lacking = {"clip_low": "no lower clip", "dual_clip": "none", "clip_high": "none"}
        if surrogate == "cispo":
            del lacking["clip_high"]
        for name, has in lacking.items():
            reason = f"objective.{name}: trl's {surrogate} has {has}"
            path = f"objective.{name}"
            problems.need(getattr(objective, name) is None, reason, path, nearest=({path: None},))
    if surrogate == "cispo":
        reason = "objective.clip_high is off: trl's cispo always clips"
        near = ({"objective.clip_high": EPSILON},)
        if problems.need(objective.clip_high is not None, reason, "objective.clip_high", nearest=near):
            values["epsilon_high"] = shifted(objective.clip_high or 0.0, 1)
    values.setdefault("beta", 0.0)
    problems.fits(
        objective.kl_placement != "reward", "objective.kl_placement", "trl has KL in the loss only", ("loss",)
    )
    problems.need(
        objective.kl_placement is None or (objective.kl_placement == "loss") == bool(values["beta"]),
        f"objective.kl_placement = {objective.kl_placement} with kl_coefficient = {objective.kl_coefficient}: trl has "
        "a KL term exactly when the coefficient is not 0",
        "objective.kl_placement",
        nearest=({"objective.kl_placement": "loss" if values["beta"] else "none"},),
    )
    if objective.kl_estimator is not None:
        known = objective.kl_estimator in ("k3", "k3_times_ratio")
        problems.fits(known, "objective.kl_estimator", "trl has k3 and k3_times_ratio", ("k3", "k3_times_ratio"))
        values["use_bias_correction_kl"] = objective.kl_estimator == "k3_times_ratio"
    values.setdefault("entropy_coef", 0.0)
    if objective.sampler_correction is not None:
        _write_correction(objective.sampler_correction, values, problems)


def _write_correction(correction: str, values: dict[str, Any], problems: Problems) -> None:
    match = _CORRECTION.fullmatch(correction)
    mode, *bounds = match.groups() if match else ("", "", "")
    try:
        low, high = (None if bound == "-" else float(bound) for bound in bounds)
    except ValueError:
        words = "trl's are token_truncate, token_mask, sequence_truncate and sequence_mask with bounds, as in "
        problems.fits(False, "objective.sampler_correction", f"{words}`sequence_mask [-, 3.0]`", (None,))
        return
    values |= {"use_vllm": True, "vllm_importance_sampling_correction": True}
    values |= {MODE: mode, CLIP_MIN: low, CLIP_MAX: high}


def _write_carried(spec: Spec, values: dict[str, Any], problems: Problems, version: str) -> None:
    carried = spec.carried
    if holds("<0.26", version):
        values["max_prompt_length"] = carried.max_prompt_tokens
    if holds("<0.16", version) and carried.top_k == 0:
        values["use_vllm"] = True  # of 0.15's two samplers, vLLM is the one without top-k
    if carried.lr_schedule is not None:
        name, arguments = problems.schedule(carried.lr_schedule) or ("linear", {})
        warms_up = bool(carried.warmup_steps or carried.warmup_ratio)
        values["lr_scheduler_type"] = transformers_name(name, warms_up=warms_up)
        if arguments:
            values["lr_scheduler_kwargs"] = arguments
    share_key = "warmup_ratio" if holds("<0.29", version) else "warmup_steps"  # with transformers 4, and 5
    if carried.warmup_ratio:
        problems.need(
            (0 < carried.warmup_ratio < 1 or share_key == "warmup_ratio") and not carried.warmup_steps,
            f"carried.warmup_ratio = {carried.warmup_ratio} with warmup_steps = {carried.warmup_steps}: trl takes one, "
            "and a share below 1",
            "carried.warmup_ratio",
            nearest=({"carried.warmup_ratio": None}, {"carried.warmup_steps": None}),
        )
        values[share_key] = carried.warmup_ratio
    elif carried.warmup_steps is not None:
        whole = carried.warmup_steps >= 0 and carried.warmup_steps % 1 == 0
        near = (float(max(round(carried.warmup_steps), 0)),)
        problems.fits(whole, "carried.warmup_steps", "trl takes whole steps", near)
        values["warmup_steps"] = int(carried.warmup_steps) if share_key == "warmup_ratio" else carried.warmup_steps
    flags = {"fp32": (False, False), "bf16": (True, False), "fp16": (False, True)}
    precision = carried.precision
    if precision is not None and problems.fits(
        precision in flags, "carried.precision", "trl has fp32, bf16 and fp16", flags
    ):
        values["bf16"], values["fp16"] = flags[precision]
    values["sync_ref_model"] = carried.reference_sync_steps is not None
    if carried.reference_sync_steps is not None:
        values["ref_model_sync_steps"] = carried.reference_sync_steps
