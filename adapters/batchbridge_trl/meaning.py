"""The meaning of TRL's settings: native settings to canonical values."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from batchbridge.kit.key_table import field_values
from batchbridge.kit.schedules import WITHOUT_WARMUP, schedule_text
from batchbridge.kit.values import FieldValue, by
from batchbridge_trl.settings import TRAINER_GROUPS, holds
from batchbridge_trl.sizes import ACCUMULATION, BATCH, GENERATIONS, MICRO, PASSES, STEPS, TrlSizes
from batchbridge_trl.tables import settings_of
from batchbridge_trl.world import KEY as WORLD

ADVANTAGE_EPSILON = 1e-4
"""The number added to the standard deviation of rewards. Source: trl 0.15.0 to 1.16.0,
GRPOTrainer._generate_and_score_completions (_prepare_inputs in 0.15)."""
ADVANTAGE_DDOF = 1
"""The correction of an unbiased deviation. Source: trl 1.16.0 trainer/utils.py, nanstd (Bessel's correction); torch.std
before 1.6."""
NO_DECAY = "biases_and_norms"
"""The parameters without weight decay. Source: transformers 4.57.6 and 5.23.0 Trainer.get_decay_parameter_names."""


class LossType(NamedTuple):
    """One `loss_type`: what it averages over, which surrogate it is, and the versions that have it.

    Source: trl GRPOTrainer._compute_loss (compute_loss before 0.17).
    """

    name: str
    aggregation: str
    surrogate: str
    versions: str = ""
    rollout_denominator: bool = False
    """Whether the denominator counts the tokens of the whole rollout (`num_items_in_batch`)."""


LOSS_TYPES = (
    LossType("grpo", "sequence_mean", "ppo", "!=0.16.*"),
    LossType("dapo", "token_mean", "ppo", ">=0.22", rollout_denominator=True),
    LossType("bnpo", "token_mean", "ppo", ">=0.16"),
    LossType("dr_grpo", "sequence_sum_over_constant", "ppo", ">=0.17"),
    LossType("luspo", "sequence_sum", "ppo", ">=0.28"),
    LossType("sapo", "sequence_mean", "sapo", ">=0.26"),
    LossType("cispo", "token_mean", "cispo", ">=0.26", rollout_denominator=True),
    LossType("vespo", "token_mean", "vespo", ">=1.0", rollout_denominator=True),
)
"""Loss types, read wheel by wheel. Of two that mean the same, `write` takes the first. Before 0.17 there is no choice:
0.15 averages per completion, 0.16 over a micro-batch's tokens."""


@lru_cache(maxsize=64)
def loss_types(version: str) -> dict[str, LossType]:
    """The rows of `version`, by name."""
    return {loss.name: loss for loss in LOSS_TYPES if holds(loss.versions, version)}


def scales(version: str) -> Mapping[str | bool, str]:
    """Native value of `scale_rewards` to canonical scale, in `version`."""
    values: Mapping[str | bool, str] = settings_of(TRAINER_GROUPS, version)["scale_rewards"].values  # type: ignore[assignment]  # all rows have words
    return values


RATIO_LEVELS = ("token", "sequence")
UNCARRIED = {
    "sapo_temperature_neg": "surrogate sapo",
    "sapo_temperature_pos": "surrogate sapo",
    "vespo_k_pos": "surrogate vespo",
    "vespo_lambda_pos": "surrogate vespo",
    "vespo_k_neg": "surrogate vespo",
    "vespo_lambda_neg": "surrogate vespo",
    "multi_objective_aggregation": "several rewards",
    "reward_weights": "several rewards",
    "off_policy_mask_threshold": "off-policy sequence mask",
    "top_entropy_quantile": "mask of low-entropy tokens",
    "use_adaptive_entropy": "entropy bonus that follows the entropy",
    "ref_model_mixup_alpha": "reference sync",
    "min_p": "sampling",
    "repetition_penalty": "sampling",
    "generation_kwargs": "sampling",
    "optim_args": "optimizer",
    "label_smoothing_factor": "loss",
    "neftune_noise_alpha": "embedding noise",
}
"""Settings that change training and have no canonical field: key -> what they belong to."""


class FixedField(NamedTuple):
    """A canonical field that TRL's settings do not decide: its value in `versions`, and why."""

    path: str
    value: Any
    reason: str
    versions: str = ""


FIXED_FIELDS = (
    FixedField("optimizer_step.rollout_shuffle", "none", "trl trains a rollout in the order of its prompts", "<0.18"),
    FixedField(
        "optimizer_step.rollout_shuffle", "completions", "trl shuffles each rank's part of a rollout once", ">=0.18"
    ),
    FixedField("optimizer_step.step_may_span", "epoch", "transformers cuts each epoch's micro-batches into steps"),
    FixedField("advantage.epsilon", ADVANTAGE_EPSILON, "fixed in trl's GRPOTrainer"),
    FixedField("advantage.ddof", ADVANTAGE_DDOF, "fixed in trl's nanstd"),
    FixedField("order.last_rollout", "short", "trl's RepeatRandomSampler of 0.15 keeps every prompt", "<0.16"),
    FixedField("order.last_rollout", "drop", "trl's RepeatSampler drops incomplete rollouts", ">=0.16"),
    FixedField("order.last_optimizer_step", "short", "transformers trains an epoch's remainder as a step"),
    FixedField("carried.weight_decay_excludes", NO_DECAY, "transformers leaves biases and norms without decay"),
)
"""Canonical values that TRL's code fixes. Sources: trl GRPOTrainer._get_train_sampler and _prepare_inputs; transformers
Trainer._inner_training_loop."""


def meaning(
    native: Mapping[str, Any], sizes: TrlSizes, version: str, ends_after: int | None = None
) -> dict[str, FieldValue] | None:
    """Canonical field (dotted) -> what TRL's settings say; None where they leave the sizes or the loss open.

    ends_after: optimizer steps after which transformers ends the run before its epochs do.
    """
    rollout = sizes.resolve()
    loss = loss_types(version).get(native["loss_type"])
    scale = scales(version).get(native["scale_rewards"])
    if rollout is None or loss is None or scale is None or native["importance_sampling_level"] not in RATIO_LEVELS:
        return None
    values = field_values(settings_of(TRAINER_GROUPS, version).values(), native)
    values |= {
        "topology.world_size": FieldValue(sizes.world, WORLD),
        "rollout.prompts_per_rollout": _prompts(rollout.prompts, sizes),
        "optimizer_step.completions_per_step": by(
            sizes.micro_step * sizes.window, sizes.product(ACCUMULATION, sizes.window), MICRO, WORLD, ACCUMULATION
        ),
        "loss.policy.aggregation": FieldValue(loss.aggregation, "loss_type"),
    }
    values |= {given.path: by(given.value, given.reason) for given in FIXED_FIELDS if holds(given.versions, version)}
    if loss.aggregation == "sequence_sum_over_constant":
        values["loss.policy.constant"] = FieldValue(native["max_completion_length"], "max_completion_length")
    if native["entropy_coef"]:
        values["loss.entropy.aggregation"] = by("token_mean", "trl's entropy bonus is a mean over tokens")
    if native["max_steps"] > 0 and ends_after is not None:
        fewer = "max_steps, for which transformers plans epochs by prompts that the sampler drops"
        values["horizon.optimizer_steps"] = FieldValue(ends_after, "max_steps", fewer)
    elif native["max_steps"] > 0:
        values["horizon.optimizer_steps"] = FieldValue(native["max_steps"], "max_steps")
    elif ends_after is not None:
        unplanned = "num_train_epochs, of which transformers before 4.52 plans whole optimizer steps only"
        values["horizon.optimizer_steps"] = FieldValue(ends_after, "num_train_epochs", unplanned, ("max_steps",))
    else:
        values["horizon.epochs"] = FieldValue(
            float(native["num_train_epochs"]), "num_train_epochs", None, ("max_steps",)
        )
    values |= _objective(native, sizes, loss, rollout.steps_per_generation, version)
    values |= _carried(native, version)
    return values


def precision(native: Mapping[str, Any]) -> str:
    """fp16, bf16 or fp32. `bf16` unset means "unless fp16": trl _BaseConfig.__post_init__."""
    if native["fp16"]:
        return "fp16"
    return "fp32" if native["bf16"] is False else "bf16"


CORRECTED = ("use_vllm", "vllm_importance_sampling_correction")


def samples_with_correction(native: Mapping[str, Any]) -> bool:
    """Whether a rollout's log-probabilities are compared with vLLM's."""
    return all(native[key] for key in CORRECTED)


def loses_correction(native: Mapping[str, Any], version: str) -> bool:
    """Whether a fused loss is computed without the ratio to vLLM's probabilities. Up to 0.24 use_liger_kernel replaces
    layers alone. Source: trl 0.23.1 to 0.29.0 GRPOTrainer.compute_liger_loss."""
    names = ("use_liger_loss",) if holds("<0.25", version) else ("use_liger_kernel", "use_liger_loss")
    return holds("<0.29", version) and any(native.get(name) for name in names)


def _prompts(prompts: int, sizes: TrlSizes) -> FieldValue:
    """A rollout's prompts by their formula."""
    group = f"{GENERATIONS} {sizes.generations}"
    if sizes.generation_batch is not None:
        return by(prompts, f"{BATCH} {sizes.generation_batch} / {group}", BATCH, GENERATIONS)
    named, steps = sizes.steps
    return by(prompts, f"{sizes.product(named, steps)} / {group}", MICRO, WORLD, named, GENERATIONS)


def records_old_logprobs(sizes: TrlSizes, steps: int, version: str) -> bool:
    """Whether `version` records the log-probabilities of a rollout before it trains on it, vLLM's correction aside.

    Elsewhere the ratio is taken against the training forward itself, and is 1. Source: trl 0.16.0, 0.18.0 to 0.19.1 and
    0.20.0 to 1.16.0 GRPOTrainer._generate_and_score_completions; 0.15 has one pass.
    """
    if holds("<0.20", version):
        return sizes.iterations > 1 or (steps > sizes.window and holds(">=0.18", version))
    return sizes.iterations < 1 or sizes.window % (steps * sizes.iterations) != 0


def _objective(
    native: Mapping[str, Any], sizes: TrlSizes, loss: LossType, steps: int, version: str
) -> dict[str, FieldValue]:
    high_key = "epsilon" if native["epsilon_high"] is None else "epsilon_high"
    high = native[high_key]
    corrected = samples_with_correction(native)
    old = "rollout_start" if corrected or records_old_logprobs(sizes, steps, version) else "detached"
    needed = ", and vLLM's correction needs them" if corrected else ""
    windows = f"{ACCUMULATION} {sizes.window} over {STEPS} {steps} x {PASSES} {sizes.iterations}{needed}"
    values = {
        "surrogate": FieldValue(loss.surrogate, "loss_type"),
        "old_logprobs": by(old, windows, ACCUMULATION, STEPS, PASSES, *CORRECTED),
        "kl_placement": FieldValue("loss" if native["beta"] else "none", "beta"),
        # fp16 steps go through a gradient scaler, which skips non-finite ones; others are applied as they are.
        "nonfinite_step": FieldValue("skip" if precision(native) == "fp16" else "apply", "fp16"),
    }
    if native["beta"]:
        estimator = "k3_times_ratio" if native["use_bias_correction_kl"] else "k3"
        values["kl_estimator"] = FieldValue(estimator, "use_bias_correction_kl")
    if loss.surrogate == "ppo":
        values["clip_low"] = FieldValue(native["epsilon"], "epsilon")
        values["clip_high"] = FieldValue(high, high_key)
        if native["delta"] is not None:
            values["dual_clip"] = FieldValue(native["delta"], "delta")
    elif loss.surrogate == "cispo":
        # trl clamps cispo's ratio at epsilon_high itself, not at 1 + epsilon_high.
        values["clip_high"] = FieldValue(shifted(high, -1), high_key, f"{high_key} {high} - 1")
    if corrected and loses_correction(native, version):
        unsaid = "the fused loss takes no ratio to vLLM's probabilities before trl 0.29.0"
        values["sampler_correction"] = by(None, unsaid, "use_liger_kernel", "use_liger_loss", *CORRECTED)
    elif corrected:
        values["sampler_correction"] = FieldValue(
            _correction(native), MODE, None, (*CORRECTED, CLIP_MIN, CLIP_MAX, CAP)
        )
    return {f"objective.{name}": entry for name, entry in values.items()}


def _carried(native: Mapping[str, Any], version: str) -> dict[str, FieldValue]:
    warmup, warmup_key = native["warmup_steps"], "warmup_steps"
    if not warmup and native.get("warmup_ratio"):
        # transformers 4.57.6 TrainingArguments.get_warmup_steps: the share counts where there are no steps.
        warmup, warmup_key = native["warmup_ratio"], "warmup_ratio"
    # Below 1 it is a share of the run: transformers 5.23.0 TrainingArguments.get_warmup_steps.
    share = 0 < warmup < 1 or warmup_key == "warmup_ratio"
    length = FieldValue(warmup if share else float(int(warmup)), warmup_key)
    schedule, arguments = str(native["lr_scheduler_type"]), native["lr_scheduler_kwargs"]
    if warmup and schedule in WITHOUT_WARMUP:
        none = f"lr_scheduler_type {schedule} has no warm-up"
        share, length = False, by(0.0, none, "lr_scheduler_type", warmup_key)
    values = {
        "lr_schedule": FieldValue(
            schedule_text(schedule, arguments, native["learning_rate"]),  # in the words that adapters share
            "lr_scheduler_type",
            "lr_scheduler_type with lr_scheduler_kwargs" if arguments else None,
            ("lr_scheduler_kwargs",),
        ),
        "warmup_ratio" if share else "warmup_steps": length,
        "reference_sync_steps": FieldValue(None, "sync_ref_model"),
        "precision": FieldValue(precision(native), "bf16"),
    }
    if native["sync_ref_model"]:
        values["reference_sync_steps"] = FieldValue(
            native["ref_model_sync_steps"], "ref_model_sync_steps", None, ("sync_ref_model",)
        )
    if holds("<0.16", version) and native["use_vllm"]:
        values["top_k"] = by(0, "vLLM samples without top-k, transformers' generate with its default of 50", "use_vllm")
    return {f"carried.{name}": entry for name, entry in values.items()}


def shifted(number: float, offset: int) -> float:
    """`number + offset` in decimals, so that 0.2 - 1 + 1 is 0.2 again."""
    return float(Decimal(repr(number)) + offset)


CLIP_MIN, CLIP_MAX, CAP = (f"vllm_importance_sampling_{name}" for name in ("clip_min", "clip_max", "cap"))
MODE = "vllm_importance_sampling_mode"


def correction_bounds(native: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The bounds of vLLM's correction, None where one is unset. The deprecated cap wins over the upper bound."""
    return native[CLIP_MIN], native[CLIP_MAX] if native[CAP] is None else native[CAP]


def _correction(native: Mapping[str, Any]) -> str:
    """`token_truncate [low, high]`; - where a bound is unset."""
    bounds = ["-" if bound is None else repr(float(bound)) for bound in correction_bounds(native)]
    return f"{native[MODE]} [{', '.join(bounds)}]"
