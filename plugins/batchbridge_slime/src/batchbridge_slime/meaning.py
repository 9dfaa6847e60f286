"""The meaning of slime's options where no row of `settings` says it. Source: slime 0.3.1 (624b824), what each names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchbridge.kit.schedules import schedule_text, share_of_peak
from batchbridge.kit.values import FieldValue, by
from batchbridge.meaning.schedule_rates import WARMUP_START
from batchbridge_slime.settings import (
    FILTER,
    ICEPOP,
    Native,
    corrected,
    in_time,
    rollout_size,
    size_of_step,
    steps_of_rollout,
)

BALANCED = ("seq_aux_loss", "aux_loss", "global_aux_loss")
"""Ways of balancing experts that a loss brings about. Source: Megatron-LM moe/router.py."""
SIZES = ("global-batch-size", "num-steps-per-rollout", "micro-batch-size", "rollout-batch-size", "n-samples-per-prompt")
ESTIMATE, KL = "advantage-estimator", ("use-kl-loss", "kl-loss-coef")


def slime_fields(native: Native) -> dict[str, FieldValue]:
    """Canonical values by field. Raises `ValueError` naming what is left open."""
    parts = (_sizes, _length, _generated, _advantage, _objective, _trained, _schedule)
    return {path: entry for part in parts for path, entry in part(native)}


def _sizes(native: Native) -> Iterator[tuple[str, FieldValue]]:
    size = by(size_of_step(native), "the size, or rollout // steps, or micro-batch x replicas", *SIZES)
    yield "optimizer_step.completions_per_step", size
    if native["use-dynamic-batch-size"]:
        yield "micro_batch.tokens_per_device", FieldValue(native["max-tokens-per-gpu"], "max-tokens-per-gpu")
        yield "micro_batch.cap", by("soft", "a longer completion is alone", "use-dynamic-batch-size")
    else:
        yield "micro_batch.completions_per_device", FieldValue(native["micro-batch-size"], "micro-batch-size")


def _length(native: Native) -> Iterator[tuple[str, FieldValue]]:
    """The length of the run. One epoch drops its remainder: nothing comes after it that could fill a rollout. Source:
    create_rollout_manager, RolloutDataSource.get_samples."""
    if native["num-rollout"] is not None:
        yield "horizon.rollouts", FieldValue(native["num-rollout"], "num-rollout")
        yield "order.last_rollout", by("wrap", "the next epoch's prompts fill a rollout", "num-rollout")
        return
    yield "horizon.epochs", FieldValue(float(native["num-epoch"]), "num-epoch")
    yield "order.last_rollout", by("drop", "an epoch is whole rollouts", "num-epoch")


def _generated(native: Native) -> Iterator[tuple[str, FieldValue]]:
    group, prompts = native["over-sampling-batch-size"], native["rollout-batch-size"]
    if group not in (None, prompts):
        yield "rollout.prompts_per_generation_batch", FieldValue(group, "over-sampling-batch-size")
    if path := native["dynamic-sampling-filter-path"]:
        known = "replace_zero_variance" if path == FILTER else "custom"
        yield "rollout.group_filter", FieldValue(known, "dynamic-sampling-filter-path")
    if native["custom-generate-function-path"]:
        yield "rollout.sample_unit", FieldValue("trajectory", "custom-generate-function-path")
    if native["partial-rollout"] and in_time(native):
        yield "staleness.mode", FieldValue("unbounded", "partial-rollout")
        yield "staleness.maximum", FieldValue(None, "partial-rollout")
    elif native["program"] == "train_async.py":
        yield "staleness.mode", FieldValue("lookahead", "program")
        yield "staleness.maximum", FieldValue(1, "program")


def _advantage(native: Native) -> Iterator[tuple[str, FieldValue]]:
    """Source: RolloutManager._post_process_rewards; a group of one has no deviation (slime_validate_args)."""
    keys = (ESTIMATE, "disable-rewards-normalization", "disable-grpo-std-normalization", "n-samples-per-prompt")
    centred = not native[keys[1]]
    scaled = centred and not native[keys[2]] and native[keys[3]] > 1
    yield "advantage.baseline", by("group_mean" if centred else "none", "rewards less their group's mean", *keys[:2])
    yield "advantage.scale", by("group" if scaled else "none", "over the group's deviation", *keys)
    if scaled:
        yield "advantage.epsilon", by(1e-6, "so in the code", *keys)
        yield "advantage.ddof", by(1, "so in the code", *keys)


def scored_in_training(native: Native) -> bool:
    """Whether a rollout's only step takes its own log-probabilities as the old ones. Source:
    MegatronTrainRayActor.train_actor, can_reuse_log_probs_in_loss."""
    replayed = not native["use-routing-replay"] or native["use-rollout-routing-replay"]
    others = (native["kl-coef"] != 0, native["get-mismatch-metrics"], native[ESTIMATE] == "gspo", not replayed)
    return steps_of_rollout(native) == 1 and not any(others)


def _objective(native: Native) -> Iterator[tuple[str, FieldValue]]:
    kind = native[ESTIMATE]
    yield "objective.surrogate", FieldValue("cispo" if kind == "cispo" else "ppo", ESTIMATE)
    yield "objective.ratio_level", FieldValue("sequence" if kind == "gspo" else "token", ESTIMATE)
    if native["use-rollout-logprobs"]:
        yield "objective.old_logprobs", FieldValue("sampler", "use-rollout-logprobs")
    else:
        keys = ("use-rollout-logprobs", ESTIMATE, "kl-coef", "get-mismatch-metrics", *SIZES)
        word = "detached" if scored_in_training(native) else "rollout_start"
        yield "objective.old_logprobs", by(word, "those of the step itself where a rollout is one", *keys)
    if kind != "cispo":
        yield "objective.dual_clip", FieldValue(native["eps-clip-c"], "eps-clip-c")
    yield from _kl(native)
    if corrected(native):
        parts = ("use-tis", "get-mismatch-metrics", "custom-tis-function-path", "tis-clip", "tis-clip-low")
        yield "objective.sampler_correction", by(correction(native), "the word and its bounds", *parts)
    if terms := tuple(open_terms(native)):
        yield "open_terms", by(terms, "terms without a field", "use-opsm", "enable-mtp-training", "moe-z-loss-coeff")


def _kl(native: Native) -> Iterator[tuple[str, FieldValue]]:
    """Source: ppo_utils.compute_approx_kl: low_var_kl alone is clamped, after the ratio is multiplied in."""
    kind, coefficient = native["kl-loss-type"], native["kl-loss-coef"]
    if not (native["use-kl-loss"] and coefficient):
        yield "objective.kl_placement", by("none", "no KL in the loss", *KL)
        yield "objective.kl_coefficient", by(0.0, "no KL in the loss", *KL)
        return
    if coefficient < 0:
        raise ValueError(f"--kl-loss-coef {coefficient} rewards a distance, for which there is no word")
    yield "objective.kl_placement", by("loss", "a KL in the loss", *KL)
    yield "objective.kl_coefficient", FieldValue(coefficient, "kl-loss-coef")
    word = {"low_var_kl": "k3"}.get(kind, kind) + "_times_ratio" * native["use-unbiased-kl"]
    yield "objective.kl_estimator", by(word, "the kind, with or without the ratio", "kl-loss-type", "use-unbiased-kl")
    if kind == "low_var_kl":
        yield "objective.kl_clamp", FieldValue(10.0, "kl-loss-type")


def correction(native: Native) -> str:
    """The correction in the words that adapters share. Source: loss.vanilla_tis_function, icepop_function."""
    low, high = native["tis-clip-low"], native["tis-clip"]
    word = "token_mask" if native["custom-tis-function-path"] == ICEPOP else "token_truncate"
    return f"{word} [{low or '-'}, {high}]"


def open_terms(native: Native) -> Iterator[str]:
    """Terms that the schema has no word for, "group: name" and a value behind it, sorted."""
    if native["moe-z-loss-coeff"]:
        yield f"carried: moe-z-loss-coeff {native['moe-z-loss-coeff']}"
    if native["enable-mtp-training"]:
        yield f"objective: enable-mtp-training {native['mtp-loss-scaling-factor']}"
    if native["use-opsm"]:
        yield f"objective: use-opsm {native['opsm-delta']}"


def _trained(native: Native) -> Iterator[tuple[str, FieldValue]]:
    yield "carried.optimizer", FieldValue("sgd" if native["optimizer"] == "sgd" else "adamw", "optimizer")
    drops = ("attention-dropout", "hidden-dropout")
    yield "carried.dropout", by("on" if any(native[key] for key in drops) else "off", "either", *drops)
    if native["ref-update-interval"]:
        steps = native["ref-update-interval"] * steps_of_rollout(native)
        yield "carried.reference_sync_steps", by(steps, "rollouts x their steps", "ref-update-interval", *SIZES)
    if factor := router_loss(native):
        yield "carried.router_loss_coefficient", FieldValue(factor, "moe-aux-loss-coeff")


def router_loss(native: Native) -> float | None:
    """The factor of the one loss that balances experts; None where there is none. Raises `ValueError` for several."""
    said, ways = ([*value] if isinstance(value := native[key], list) else [value] for key in _ROUTER)
    try:
        factors = [float(factor) for factor, way in zip(said, ways * len(said), strict=False) if way in BALANCED]
    except (TypeError, ValueError):
        raise ValueError(f"--moe-aux-loss-coeff {said}: expected numbers") from None
    if len([factor for factor in factors if factor]) > 1:
        raise ValueError("several losses balance the experts, and the schema has one")
    return next(filter(None, factors), None)


_ROUTER = ("moe-aux-loss-coeff", "moe-router-load-balancing-type")


def _schedule(native: Native) -> Iterator[tuple[str, FieldValue]]:
    """Source: model.get_optimizer_param_scheduler, Megatron's OptimizerParamScheduler. Both count completions; the
    schedule ends after those of whole rollouts, also where a rollout's remainder is never trained."""
    style, peak, length = native["lr-decay-style"], native["lr"], native["lr-decay-iters"]
    arguments: dict[str, Any] = {}
    if style != "constant":
        if native["min-lr"]:
            arguments["min_lr_rate"] = share_of_peak(native["min-lr"], peak)
        if length is None and rollout_size(native) % size_of_step(native) and native["num-rollout"]:
            length = native["num-rollout"] * rollout_size(native) // size_of_step(native)
        if length is not None:
            arguments["decay_ticks"] = length
    if native["lr-warmup-init"]:
        arguments[WARMUP_START] = share_of_peak(native["lr-warmup-init"], peak)
    name = "cosine_with_min_lr" if style == "cosine" and "min_lr_rate" in arguments else style
    text = schedule_text(name, arguments, peak) if style != "constant" or arguments else "constant"
    keys = ("lr-decay-style", "min-lr", "lr", "lr-decay-iters", "lr-warmup-init")
    yield "carried.lr_schedule", by(text, "style, floor, length and beginning", *keys)
    share, given = native["lr-warmup-fraction"], native["lr-decay-iters"]
    if share is None:
        yield "carried.warmup_steps", FieldValue(float(native["lr-warmup-iters"]), "lr-warmup-iters")
    elif given is not None:
        steps = by(share * given, "share x length of the decay", "lr-warmup-fraction", "lr-decay-iters")
        yield "carried.warmup_steps", steps
    else:
        yield "carried.warmup_ratio", FieldValue(share, "lr-warmup-fraction")
