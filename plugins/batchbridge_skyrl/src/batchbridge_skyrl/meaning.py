"""The meaning of SkyRL's settings where no row of `settings` says it. Source: skyrl 0.3.0, 0.4.0, symbols at each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge.kit.values import FieldValue, by
from batchbridge_skyrl.settings import ENTRIES, FACTS, KNOWN, LOOKAHEAD, MAIN, SkyRLRun, full

CLIPS = dict.fromkeys(("regular", "dual_clip", "gspo", "clip_cov", "rollout_is"), "eps_clip")
CLIPS |= {"cispo": "cispo.cispo_eps_clip", "dppo": "dppo.delta"}
"""Losses with clip bounds, and their settings' beginning. Source: ppo_utils."""
UNCORRECTED = ("clip_cov", "kl_cov", "importance_sampling", "cross_entropy")
"""Losses that do not call apply_off_policy_correction. Source: ppo_utils."""
CORRECTION, BUDGET = "off_policy_correction", "max_tokens_per_microbatch"
SLICES = "loss: token_mean of slices"
"""Means over slices of micro_train_batch_size_per_gpu completions, where micro-batches are cut by tokens."""
NAMED = {"advantage_estimator": "advantage", "policy_loss_type": "objective"}
"""Settings whose values without a row are open terms of a group."""


def derive(native: Mapping[str, Any]) -> dict[str, FieldValue]:
    """Canonical values by field."""
    run = SkyRLRun(native)
    size = run["policy_mini_batch_size"] * run["n_samples_per_prompt"]
    opened, corrected = tuple(sorted(open_terms(run))), "; ".join(corrections(run)) or None
    correction = [key for key in run if f".{CORRECTION}." in key]
    values = {
        "optimizer_step.completions_per_step": _by(
            size, "one times the other", "policy_mini_batch_size", "n_samples_per_prompt"
        ),
        "objective.sampler_correction": _by(corrected, CORRECTION, "use_tis", "tis_imp_ratio_cap", *correction),
        "open_terms": _by(opened, "by name", "entrypoint", "algorithm.temperature", *NAMED, *FACTS["open"]),
    }
    for part in (_sizes, _terms, _objective, _sampled, _staleness, _critic):
        values |= part(run)
    betas, scheduler = (f"policy.optimizer_config.{name}" for name in ("adam_betas", "scheduler"))
    for place, value in enumerate(run[betas], 1):
        values[f"carried.beta{place}"] = _by(value, "one of adam_betas", betas)
    if run[scheduler] == "constant":
        values["carried.warmup_steps"] = _by(0.0, "transformers' constant has no warm-up", scheduler)
    return values


def _is(run: SkyRLRun, end: str) -> FieldValue:
    return FieldValue(run[end], full(end))


def _by(value: Any, formula: str, *ends: str) -> FieldValue:
    return by(value, formula, *map(full, ends))


def is_async(run: SkyRLRun) -> bool:
    """Whether FullyAsyncRayPPOTrainer trains: some programs have another trainer, whatever is enabled."""
    return bool(run["fully_async.enabled"]) and run["entrypoint"] not in (MAIN, LOOKAHEAD)


def anchored(run: SkyRLRun) -> bool:
    """Whether CISPO's ratio is to vLLM's log-probabilities. Source: skyrl 0.4.0 compute_policy_loss_cispo."""
    return bool(run["policy_loss_type"] == "cispo" and run["cispo_anchor"] == "rollout")


def _sizes(run: SkyRLRun) -> dict[str, FieldValue]:
    megatron = run["trainer.strategy"] == "megatron"
    config = "policy.megatron_config."
    kinds = ("tensor", "pipeline") if megatron else ()
    values = {f"topology.{kind}_parallel": _is(run, f"{config}{kind}_model_parallel_size") for kind in kinds}
    context = f"{config}context_parallel_size" if megatron else "policy.sequence_parallel_size"
    values["topology.context_parallel"] = _is(run, context)
    if megatron and run[router := f"{config}moe_router_load_balancing_type"] != "none":
        coefficient = _is(run, f"{config}moe_aux_loss_coeff")
        values["carried.router_loss_coefficient"] = coefficient._replace(others=(full(router),))
    micro, forward = "micro_train_batch_size_per_gpu", "micro_forward_batch_size_per_gpu"
    if run[BUDGET] > 0:  # a longer completion is a micro-batch of its own
        values["micro_batch.tokens_per_device"] = _is(run, BUDGET)
        return values | {"micro_batch.cap": _by("soft", "sequences are not split", BUDGET)}
    values["micro_batch.completions_per_device"] = _is(run, micro)
    if run[forward] != run[micro]:
        values["micro_batch.forward_completions_per_device"] = _is(run, forward)
    return values


def _terms(run: SkyRLRun) -> dict[str, FieldValue]:
    """Policy weights are made for the whole step; KL and entropy are averaged in micro-batches, by their completions.

    Source: trainer._normalize_advantages, worker.PolicyWorkerBase._forward_backward_micro.
    """
    values, reduction = {}, run["loss_reduction"]
    if reduction == "seq_mean_token_sum_norm":
        values["loss.policy.constant"] = _is(run, "algorithm.max_seq_len")
    if run["use_kl_loss"] and run["kl_loss_coef"] and reduction != "sequence_mean":
        values["loss.kl.aggregation"] = _by("sequence_mean", "KL is a mean over completions", "use_kl_loss")
    if run["use_entropy_loss"] and run["entropy_loss_coef"] and reduction != "token_mean_legacy":
        values["loss.entropy.aggregation"] = _by("token_mean", "entropy is a mean over tokens", "use_entropy_loss")
        values["loss.entropy.denominator_scope"] = _by("micro_batch", "of a micro-batch", "use_entropy_loss")
    if run["advantage_estimator"] == "grpo" and run["n_samples_per_prompt"] == 1:
        for field, value in {"baseline": "none", "scale": "none", "ddof": None, "epsilon": None}.items():
            values[f"advantage.{field}"] = _by(
                value, "mean 0 and deviation 1 of a group of one", "n_samples_per_prompt"
            )
    return values


def _objective(run: SkyRLRun) -> dict[str, FieldValue]:
    values, clip = {}, CLIPS.get(run["policy_loss_type"])
    for side in ("low", "high") if clip else ():
        values[f"clip_{side}"] = _is(run, f"{clip}_{side}")
    if anchored(run):
        values["old_logprobs"] = _by("sampler", "the anchor", "policy_loss_type", "cispo_anchor")
    if run["policy_loss_type"] == "dual_clip":
        values["dual_clip"] = _is(run, "clip_ratio_c")
    off = _by(0.0, "use_entropy_loss is off", "use_entropy_loss")
    values["entropy_coefficient"] = _is(run, "entropy_loss_coef") if run["use_entropy_loss"] else off
    values["kl_coefficient"] = _by(0.0, "both switches are off", "use_kl_loss", "use_kl_in_reward")
    if run["use_kl_loss"] or run["use_kl_in_reward"]:
        values |= {"kl_coefficient": _is(run, "kl_loss_coef"), "kl_estimator": _is(run, "kl_estimator_type")}
        for field, bound in (
            (("kl_log_ratio_clamp", 20.0), ("kl_clamp", 10.0)) if run["kl_estimator_type"] == "k3" else ()
        ):
            values[field] = _by(bound, "fixed in ppo_utils.compute_approx_kl", "kl_estimator_type")
    return {f"objective.{name}": entry for name, entry in values.items()}


def corrections(run: SkyRLRun) -> Iterator[str]:
    """The off-policy correction in the words that adapters share.

    Source: off_policy_correction_utils; utils.validate_cfg for the deprecated use_tis.
    """
    if run["policy_loss_type"] in UNCORRECTED:
        return
    if run["use_tis"]:
        yield f"token_truncate [-, {run['tis_imp_ratio_cap']}]"
    elif (level := run["tis_ratio_type"]) is not None:
        yield f"{level}_truncate [-, {run[f'{level}_tis_ratio_clip_high']}]"
    metric = run["sequence_mask_metric"]
    masks = (
        ("sequence_mask", "product_mask", metric == "product"),
        ("sequence_geometric_mask", "geo_mask", metric == "geometric"),
        ("token_mask", "token_mask_is_threshold", run["token_mask_is_threshold_low"] is not None),
        ("sequence_outlier_mask", "outlier_token_is_threshold", True),
    )
    for word, setting, on in masks:
        bounds = [run[f"{CORRECTION}.{setting}_{side}"] for side in ("low", "high")]
        if on and bounds != [None, None] and not (word == "token_mask" and None in bounds):
            yield f"{word} [{', '.join('-' if bound is None else str(bound) for bound in bounds)}]"


def _sampled(run: SkyRLRun) -> dict[str, FieldValue]:
    length, most, values = "generator.sampling_params.max_generate_length", "max_input_length", {}
    if run["step_wise_trajectories"]:
        values["rollout.sample_unit"] = _by("turn", "one sequence for each turn", "step_wise_trajectories")
    elif run["max_turns"] > 1:
        values["rollout.sample_unit"] = _by("trajectory", "several turns in one sequence", "max_turns")
    else:
        values["carried.max_completion_tokens"] = _is(run, length)
    if run["max_turns"] > 1:
        total = run[most] + run[length]
        values["carried.max_total_tokens"] = _by(total, "input and output of the last turn", most, length)
    return values


def _staleness(run: SkyRLRun) -> dict[str, FieldValue]:
    if run["entrypoint"] == LOOKAHEAD:
        mode, oldest = _by("lookahead", "the program", "entrypoint"), _by(1, "the program", "entrypoint")
    elif is_async(run):
        mode, oldest = _by("bounded", "the program", "fully_async.enabled"), _is(run, "max_staleness_steps")
    else:
        return {}
    values = {"staleness.mode": mode, "staleness.maximum": oldest}
    if run["sample_full_batch"]:
        values["rollout.group_filter"] = _by("replace_zero_variance", "sample_full_batch", "sample_full_batch")
    return values


def _critic(run: SkyRLRun) -> dict[str, FieldValue]:
    """A mean of completions' means, whatever the micro-batches. Source: worker.CriticWorkerBase, ppo_critic_loss."""
    if run[path := "trainer.critic.model.path"] is None:
        return {}
    mini, group, passes = "critic_mini_batch_size", "n_samples_per_prompt", "update_epochs_per_batch"
    values = {field: _is(run, key) for field, key in FACTS["critic"].items()}
    values["completions_per_step"] = _by(run[mini] * run[group], "one times the other", mini, group)
    values |= {"aggregation": _by("sequence_mean", "ppo_critic_loss", path), "passes_per_rollout": _is(run, passes)}
    tokens = run[BUDGET] > 0
    size = _is(run, BUDGET if tokens else "micro_train_batch_size_per_gpu")
    values[f"{'tokens' if tokens else 'completions'}_per_device"] = size
    return {f"critic.{field}": entry for field, entry in values.items()}


def open_terms(run: SkyRLRun) -> Iterator[str]:
    """Terms that the schema has no word for: "group: name", and a value behind it."""
    entry = run["entrypoint"]
    if entry is not None and (term := ENTRIES.get(entry, f"code {entry}")):
        yield f"rollout: {term}"
    for end, group in NAMED.items():
        if run[end] not in KNOWN[end]:
            yield f"{group}: {run[end]}"
    for key, (group, *needs) in FACTS["open"].items():
        if run[key] != FACTS["settings"][key][1] and (not needs or run[needs[0]] in needs[1]):
            yield f"{group}: {key.rpartition('.')[2]} {run[key]}"
    if run["algorithm.temperature"] not in (None, run["generator.sampling_params.temperature"]):
        yield f"objective: temperature {run['algorithm.temperature']}"
    if run["loss_reduction"] == "token_mean_legacy" and run["max_tokens_per_microbatch"] > 0:
        yield SLICES
