"""The meaning of Open-Instruct's settings: native settings to canonical values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batchbridge.kit.clipping import canonical_bound
from batchbridge.kit.key_table import field_values
from batchbridge.kit.schedules import WITHOUT_WARMUP, schedule_text
from batchbridge.kit.values import FieldValue, by
from batchbridge.kit.versions import holds
from batchbridge_open_instruct.settings import GROUP, GRPO, GRPO_FAST, LEARNERS, PPO, PROMPTS, SCALES, SCRIPT, rows_of

EPSILON = 1e-8
"""The number added to the deviation (GRPO), and to the variance (PPO). Source: data_loader.py, ppo: masked_whiten."""
KL_ESTIMATORS = ("k1", "k2", "k3", "k1_times_ratio")
"""KL estimators by the number `kl_estimator`. Source: model_utils.py, estimate_kl, e6c3044aa."""
KL_LOG_RATIO_CLAMP = 40.0
"""Bound of the log-ratio before the estimate (nats). Source: grpo_utils.py, compute_grpo_loss."""
NAMED_KL = {"kl1": "k1", "kl2": "k2", "kl3": "k3", "kl4": "k1_times_ratio"}
"""KL estimators by the `kl_estimator` of grpo_fast.py before v0.1.0. Source: grpo_fast.py, fc22674da."""
KL_WORDS: Mapping[Any, str] = {**NAMED_KL, **dict(enumerate(KL_ESTIMATORS))}
PPO_KL = {"kl1": "k1", "kl2": "k2", "kl3": "k3"}
"""KL estimators by the `kl_estimator` of the PPO script. Source: ppo_vllm_thread_ray_gtrl.py, kl_estimator."""
TORCH_DECAY = 0.01
"""torch.optim.AdamW's weight decay where a script hands it none."""
DROPS_STALE = ">=2026.8.20"
"""Checkouts that drop results older than async_steps. Source: #1738, 2026-06-27."""


CONSTANTS: Mapping[str, FieldValue] = {
    "objective.ratio_level": by("token", "the ratio is taken per token"),
    "objective.entropy_coefficient": by(0.0, "no entropy bonus"),
    "carried.optimizer": by("adamw", "torch.optim.AdamW"),
    "carried.beta1": by(0.9, "torch.optim.AdamW's own"),
    "carried.beta2": by(0.999, "torch.optim.AdamW's own"),
    "carried.optimizer_epsilon": by(1e-8, "torch.optim.AdamW's own"),
    "carried.dropout": by("off", "disable_dropout_in_model", "disable_dropout_in_model"),
    "carried.precision": by("bf16", "the DeepSpeed configuration is bf16"),
}
"""Canonical values that every script fixes; none sets AdamW's numbers (PPO's `eps` is never read)."""
PPO_CONSTANTS: Mapping[str, FieldValue] = {
    "optimizer_step.rollout_shuffle": by("completions", "each rank permutes its share in each epoch"),
    "order.last_rollout": by("drop", "an epoch's remainder of prompts is dropped"),
    "loss.policy.aggregation": by("token_mean", "masked_mean"),
    "advantage.baseline": by("value", "a value model, and GAE"),
    "advantage.scale": by("batch", "masked_whiten"),
    "advantage.epsilon": by(EPSILON, "masked_whiten"),
    "advantage.ddof": by(1, "masked_whiten"),
    "objective.surrogate": by("ppo", "the clipped ratio"),
    "objective.old_logprobs": by("rollout_start", "computed before training on the rollout"),
    "carried.weight_decay": by(TORCH_DECAY, "torch.optim.AdamW's own"),
    "carried.weight_decay_excludes": by("nothing", "one group of parameters"),
    "carried.max_gradient_norm": by(1.0, "get_train_ds_config"),
    "carried.top_p": by(1.0, "SamplingParams"),
}
"""Canonical values that the PPO script fixes."""
TICKS: Mapping[str, FieldValue] = {
    GRPO: by("rollout", "OLMo-core's scheduler counts rollouts"),
    GRPO_FAST: by("optimizer_step", "DeepSpeed's scheduler counts steps"),
}
OpenInstructSettings = Mapping[str, Any]


def learners(native: OpenInstructSettings) -> int:
    """Devices that train; vLLM's are not counted."""
    return sum(native[LEARNERS[native[SCRIPT]]])


def meaning(native: OpenInstructSettings, checkout: str) -> dict[str, FieldValue]:
    """Canonical field to what is said about it. Raises `ValueError` saying what the schema cannot say."""
    return _ppo(native, checkout) if native[SCRIPT] == PPO else _grpo(native, checkout)


def _by(value: Any, *keys: str) -> FieldValue:
    """A value that several settings say together, in words of its own."""
    return by(value, ", ".join(keys), *keys)


_GROUPS = (PROMPTS, GROUP)
"""Keys of a rollout's completions."""
_ROWS = "per_device_train_batch_size"


def _grpo(native: OpenInstructSettings, checkout: str) -> dict[str, FieldValue]:
    parts, rows, pack = native["num_mini_batches"], native[_ROWS], native["pack_length"]
    completions, episodes = native[PROMPTS] * native[GROUP], native["total_episodes"]
    if not completions:
        raise ValueError("a rollout without completions")
    first = "masked_mean_axis" in native  # before v0.1.0
    if first:
        _first_can_be_said(native)
    olmo = native[SCRIPT] == GRPO
    size = " x ".join(f"{key} {native[key]}" for key in _GROUPS)
    on = native["load_ref_policy"] and native["beta"] != 0
    scale = _word(native, "advantage_normalization_type", SCALES)
    values = {
        **_shared(native, checkout),
        "topology.world_size": FieldValue(learners(native), LEARNERS[GRPO], f"sum of {LEARNERS[GRPO]}"),
        "topology.context_parallel": FieldValue(
            1 if olmo else native["sequence_parallel_size"], "sequence_parallel_size"
        ),
        "rollout.group_filter": _by(_filter(native), "active_sampling", "filter_zero_std_samples"),
        "optimizer_step.rollout_shuffle": by("completions", "packed rows are permuted on each rank"),
        "micro_batch.tokens_per_device": by(
            rows * pack, f"{_ROWS} {rows} (packed rows) x pack_length {pack}", _ROWS, "pack_length"
        ),
        "order.last_rollout": by("drop", "ShufflingIterator drops an epoch's remainder")
        if first
        else by("wrap", "prompts are streamed from epoch to epoch"),
        "staleness.mode": _by(_staleness(native, checkout), "async_steps"),
        "horizon.rollouts": by(
            episodes // completions, f"total_episodes {episodes} // ({size})", "total_episodes", *_GROUPS
        ),
        "horizon.lr_tick": TICKS[native[SCRIPT]],
        "advantage.epsilon": by(EPSILON if scale == "group" else None, "data_loader.py"),
        "advantage.ddof": by(0 if scale == "group" else None, "numpy's standard deviation"),
        "objective.old_logprobs": _by(_old_logprobs(native), "use_vllm_logprobs", "num_mini_batches", "num_epochs"),
        "objective.sampler_correction": _correction(native),
        "objective.kl_placement": _by("loss" if on else "none", "load_ref_policy", "beta"),
        "objective.kl_estimator": FieldValue(_word(native, "kl_estimator", KL_WORDS) if on else None, "kl_estimator"),
        "objective.kl_coefficient": FieldValue(native["beta"] if on else 0.0, "beta"),
        "objective.kl_log_ratio_clamp": by(KL_LOG_RATIO_CLAMP if on else None, "fixed in compute_grpo_loss"),
        "carried.weight_decay": _decay(native),
        "carried.weight_decay_excludes": FieldValue("biases_and_norms" if native[EXCLUDES] else "nothing", EXCLUDES),
        "carried.reference_sync_steps": _reference_sync(native, on),
    }
    if not olmo and native["max_grad_norm"] is not None:  # DeepSpeed clips where its bound is above 0
        bound = canonical_bound(max(native["max_grad_norm"], 0.0))
        values["carried.max_gradient_norm"] = FieldValue(bound, "max_grad_norm")
    if parts == 1:
        whole = by(completions, f"{size}, num_mini_batches 1", *_GROUPS, "num_mini_batches")
        values["optimizer_step.completions_per_step"] = whole
    else:
        values["optimizer_step.parts_per_rollout"] = FieldValue(parts, "num_mini_batches")
        last = "drop" if native[SCRIPT] == GRPO_FAST else "short"
        values["order.last_optimizer_step"] = by(last, "micro-batches that are left over")
    if native["loss_fn"] == "cispo":
        values["objective.clip_low"] = FieldValue(None, "clip_lower")
    aggregation, constant = denominator(native["loss_denominator"], completions if parts == 1 else None)
    values["loss.policy.aggregation"] = FieldValue(aggregation, "loss_denominator")
    if constant is not None:
        formula = f"loss_denominator {native['loss_denominator']} / {completions} completions"
        values["loss.policy.constant"] = by(constant, formula, "loss_denominator", *_GROUPS)
    return values


def _first_can_be_said(native: OpenInstructSettings) -> None:
    """Refusal (`ValueError`) of what only grpo_fast.py before v0.1.0 does, and the schema cannot say."""
    if native["masked_mean_axis"] is not None:
        raise ValueError(f"masked_mean_axis {native['masked_mean_axis']} averages over packed rows, not completions")
    if native["masked_mean_denominator"] is not None:
        raise ValueError("masked_mean_denominator divides each micro-batch's sum, whatever its tokens")
    if native["fill_completions"]:
        raise ValueError("fill_completions trains on some completions twice")


def _staleness(native: OpenInstructSettings, checkout: str) -> str:
    if not native["async_steps"]:
        return "sync"
    return "bounded" if holds(DROPS_STALE, checkout) else "lookahead"


def denominator(text: str, completions: int | None) -> tuple[str, int | None]:
    """(aggregation, constant) of `loss_denominator`, where a step has `completions`. Raises `ValueError`.

    The loss of a step is the sum over its tokens divided by the constant. The schema divides by completions x c, with
    a whole c, so only multiples of the completions can be said.
    """
    if text == "token":
        return "token_mean", None
    number = float(text)
    if number == 1:
        return "token_sum", None
    if completions is None:
        raise ValueError(
            f"loss_denominator {text}: with several optimizer steps per rollout the completions of a step are open"
        )
    constant = number / completions
    if not 1 <= constant < 1e15 or constant != int(constant):
        raise ValueError(f"loss_denominator {text} is not a multiple of the step's {completions} completions")
    return "sequence_sum_over_constant", int(constant)


def _filter(native: OpenInstructSettings) -> str:
    if native["active_sampling"]:
        return "replace_zero_variance"
    return "drop_zero_variance" if native["filter_zero_std_samples"] else "none"


def _old_logprobs(native: OpenInstructSettings) -> str:
    if native["use_vllm_logprobs"]:
        return "sampler"
    return "detached" if native["num_mini_batches"] == native["num_epochs"] == 1 else "rollout_start"


def _word(native: OpenInstructSettings, key: str, words: Mapping[Any, str]) -> str:
    """The canonical word for a setting. Raises `ValueError` where there is none."""
    if native[key] not in words:
        raise ValueError(f"{key} {native[key]}")
    return words[native[key]]


RHO = {
    "token_truncate": ("rho_clamp_lower_bound", "rho_clamp_upper_bound"),
    "token_mask": ("rho_mask_lower_bound", "rho_mask_upper_bound"),
}
"""Shared word to the settings of its bounds, where 0 is not a bound. Source: grpo_utils.py, compute_rho_correction."""
RHO_KEYS = tuple(key for keys in RHO.values() for key in keys)
_NUMBER = r"-|\d+(\.\d+)?(e[+-]?\d+)?"
RHO_WORDS = re.compile(rf"(?P<word>token_truncate|token_mask) \[(?P<lower>{_NUMBER}), (?P<upper>{_NUMBER})\]")


CAP = "truncated_importance_sampling_ratio_cap"
"""The upper bound's only setting before 2026.6.10."""


def _correction(native: OpenInstructSettings) -> FieldValue:
    """The correction towards the sampler in the words that adapters share; `writing` reads them back."""
    if CAP in native:
        text = f"token_truncate [-, {float(native[CAP])!r}]" if native[CAP] > 0 else None
        return by(text, _BOUNDS, CAP)
    bounds = {word: [native[key] for key in keys] for word, keys in RHO.items()}
    parts = [
        f"{word} [{', '.join(repr(float(bound)) if bound > 0 else '-' for bound in pair)}]"
        for word, pair in bounds.items()
        if max(pair) > 0
    ]
    text = "; ".join(parts) or "token_truncate [-, -]"  # the bare ratio
    return by(text if native["use_rho_correction"] else None, _BOUNDS, "use_rho_correction", *RHO_KEYS)


_BOUNDS = "use_rho_correction and its bounds"
EXCLUDES = "set_weight_decay_on_bias_and_norm"


def _decay(native: OpenInstructSettings) -> FieldValue:
    if native[EXCLUDES]:
        return FieldValue(native["weight_decay"], "weight_decay", None, (EXCLUDES,))
    return by(TORCH_DECAY, f"{EXCLUDES} is off: AdamW gets no weight_decay, and takes its own", EXCLUDES)


def _reference_sync(native: OpenInstructSettings, on: bool) -> FieldValue:
    every = native["ref_policy_update_freq"]
    if every is None or not on:
        return FieldValue(None, "ref_policy_update_freq")
    steps = native["num_epochs"] * native["num_mini_batches"]
    formula = f"ref_policy_update_freq {every} (rollouts) x {steps} optimizer steps"
    return by(every * steps, formula, "ref_policy_update_freq", "num_epochs", "num_mini_batches")


def _shared(native: OpenInstructSettings, checkout: str) -> dict[str, FieldValue]:
    """Values that one setting alone says, that every script fixes, and the learning rate's schedule."""
    ratio, steps = native["warmup_ratio"], native.get("warm_up_steps", 0)
    if native[SCRIPT] != GRPO and native["lr_scheduler_type"] in WITHOUT_WARMUP:
        ratio = steps = 0
    by_steps = bool(steps) and ratio <= 0
    return {
        **field_values(rows_of(checkout).values(), native),
        **CONSTANTS,
        "carried.lr_schedule": FieldValue(_schedule(native), "lr_scheduler_type"),
        "carried.warmup_ratio": FieldValue(ratio if ratio > 0 else None if steps else 0.0, "warmup_ratio"),
        "carried.warmup_steps": _by(float(steps) if by_steps else None, "warm_up_steps"),
    }


OLMO_FLOOR = 0.1
"""Share of the peak at which OLMo-core's cosine ends. Source: olmo_core.optim CosWithWarmup.alpha_f, which grpo.py
leaves as it is; it gives its linear schedule 0."""


def _schedule(native: OpenInstructSettings) -> str:
    """The schedule in the words that adapters share: grpo.py takes OLMo-core's, the others transformers'."""
    name = native["lr_scheduler_type"]
    if native[SCRIPT] == GRPO and name == "cosine":
        return schedule_text("cosine_with_min_lr", {"min_lr_rate": OLMO_FLOOR})
    return schedule_text(name)


def _ppo(native: OpenInstructSettings, checkout: str) -> dict[str, FieldValue]:
    world, group, episodes = learners(native), native["number_samples_per_prompt"], native["total_episodes"]
    local, mini = native["local_rollout_batch_size"], native["local_mini_batch_size"]
    prompts, on, kl = local * world, native["beta"] != 0, _word(native, "kl_estimator", PPO_KL)
    last = "error" if holds(">=2025.11.3", checkout) else "short"
    shares = ("local_rollout_batch_size", LEARNERS[PPO])
    return {
        **PPO_CONSTANTS,
        **_shared(native, checkout),
        "topology.world_size": FieldValue(world, LEARNERS[PPO], f"sum of {LEARNERS[PPO]}"),
        "rollout.prompts_per_rollout": by(prompts, f"local_rollout_batch_size {local} x {world} learners", *shares),
        "optimizer_step.completions_per_step": by(
            mini * world, f"local_mini_batch_size {mini} x {world} learners", "local_mini_batch_size", LEARNERS[PPO]
        ),
        "order.last_optimizer_step": by(last, "calculate_runtime_args, exact_div"),
        "staleness.maximum": by(int(native["async_mode"]), "async_mode: one rollout behind", "async_mode"),
        "horizon.rollouts": by(
            episodes // (prompts * group),
            f"total_episodes {episodes} // ({prompts} prompts x {group})",
            *("total_episodes", *shares, "number_samples_per_prompt"),
        ),
        "objective.kl_placement": _by("reward" if on else "none", "beta"),
        "objective.kl_estimator": FieldValue(kl if on else None, "kl_estimator"),
    }
