"""The settings of a loop. The SDK has no configuration: what it takes as arguments and what it leaves to the loop have
the schema's names, so that the written program holds each number once.

Defaults are those of the SDK's arguments where it has such (0.38.0: AdamParams, SamplingParams,
create_lora_training_client), a plain sum of token losses, as the service adds them up, and else the schema's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import count, flag, natural, one_of, optional, real, text, whole

LoopSettings = Mapping[str, Any]
SHARE = real(0, 1)
AGGREGATIONS = ("token_sum", "token_mean", "sequence_mean", "sequence_sum", "sequence_sum_over_constant", "prompt_mean")
OFF = (lambda norm: norm or None, lambda norm: norm or 0.0)
"""The SDK's 0.0 for no bound of the gradient norm, and back."""


def _same(path: str, kind: Any, default: Any, unit: str) -> Key:
    """The row of a setting that is a canonical field, by the field's name."""
    return Key(path, kind, default, path, unit=unit)


KEYS = (
    Key("base_model", optional(text), meaning="the model that Tinker fine-tunes"),
    Key("lora_rank", natural, 32, meaning="rank of the adapters, which alone are trained"),
    _same("rollout.prompts_per_rollout", natural, 8, "prompts"),
    _same("rollout.completions_per_prompt", natural, 8, "completions per prompt"),
    _same("rollout.truncated_completions", one_of("keep", "mask"), "keep", "kind"),
    _same("optimizer_step.completions_per_step", natural, 64, "completions"),
    _same("optimizer_step.passes_per_rollout", natural, 1, "passes"),
    _same("optimizer_step.rollout_shuffle", one_of("none", "completions", "groups"), "none", "kind"),
    _same("optimizer_step.step_may_span", one_of("none", "rollout", "epoch", "run"), "none", "kind"),
    _same("loss.policy.aggregation", one_of(*AGGREGATIONS), "token_sum", "kind"),
    _same("loss.policy.constant", optional(natural), None, "tokens"),
    _same("loss.policy.count_empty", flag, True, "flag"),
    _same("horizon.rollouts", optional(count), None, "rollouts"),
    _same("horizon.epochs", optional(real(0)), None, "epochs"),
    _same("horizon.optimizer_steps", optional(count), None, "optimizer steps"),
    _same("horizon.lr_tick", one_of("optimizer_step", "rollout"), "optimizer_step", "kind"),
    _same("micro_batch.completions_per_device", optional(natural), None, "completions per forward_backward call"),
    _same("advantage.baseline", one_of("group_mean", "leave_one_out", "none"), "group_mean", "kind"),
    _same("advantage.scale", one_of("none", "group", "batch", "group_others"), "none", "kind"),
    _same("advantage.epsilon", optional(real(0)), None, "reward"),
    _same("advantage.ddof", optional(whole(0, 1)), None, "completions"),
    _same("advantage.minimum", optional(real()), None, "advantage"),
    _same("advantage.maximum", optional(real()), None, "advantage"),
    _same("order.seed", whole(), 0, "seed"),
    _same("order.prompt_shuffle", one_of("epoch_permutation", "none"), "epoch_permutation", "kind"),
    _same("order.last_rollout", one_of("drop", "short", "pad", "wrap", "error"), "drop", "kind"),
    _same("order.last_optimizer_step", one_of("short", "drop", "pad", "error"), "short", "kind"),
    _same("objective.surrogate", one_of("ppo", "cispo"), "ppo", "kind"),
    _same("objective.clip_low", optional(SHARE), None, "ratio"),
    _same("objective.clip_high", optional(real(0)), None, "ratio"),
    _same("objective.old_logprobs", one_of("sampler", "rollout_start", "detached"), "sampler", "kind"),
    _same("carried.learning_rate", real(0), 1e-4, "1"),
    _same("carried.lr_schedule", text, "constant", "kind"),
    _same("carried.warmup_steps", optional(real(0)), None, "learning-rate ticks"),
    _same("carried.warmup_ratio", optional(SHARE), None, "share of the run"),
    _same("carried.beta1", SHARE, 0.9, "1"),
    _same("carried.beta2", SHARE, 0.95, "1"),
    _same("carried.optimizer_epsilon", real(0), 1e-12, "1"),
    _same("carried.weight_decay", real(0), 0.0, "1"),
    Key("carried.max_gradient_norm", real(0), 0.0, "carried.max_gradient_norm", OFF, unit="gradient norm, 0: off"),
    _same("carried.max_prompt_tokens", optional(natural), None, "tokens"),
    _same("carried.max_completion_tokens", optional(natural), None, "tokens"),
    _same("carried.top_p", SHARE, 1.0, "probability"),
    _same("carried.top_k", whole(-1), -1, "tokens, -1: off"),
)
CONSTANTS: Mapping[str, Any] = {
    "objective.ratio_level": "token",
    "objective.kl_placement": "none",
    "objective.kl_coefficient": 0.0,
    "objective.entropy_coefficient": 0.0,
    "carried.optimizer": "adamw",
    "carried.weight_decay_excludes": "nothing",
    "carried.temperature": 1.0,
}
"""Canonical fields that the loop and the service fix. Source: tinker 0.38.0 TrainingClient.optim_step (torch's AdamW);
the losses of its documentation, which are per token and know neither a reference nor an entropy."""
