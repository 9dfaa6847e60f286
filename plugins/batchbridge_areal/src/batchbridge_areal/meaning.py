"""The meaning of AReaL's settings where no row of `settings` says it. Source: AReaL 1.0.4 (4aef98d), what each
names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge.kit.schedules import schedule_text
from batchbridge.kit.values import FieldValue, by
from batchbridge.meaning.schedule_rates import WARMUP_START
from batchbridge_areal.settings import (
    ENDLESS,
    ArealSettings,
    against_nothing,
    allocation,
    devices,
    engine,
    rows_vary,
    share,
)

BACKEND, PARTS = "actor.backend", "actor.ppo_n_minibatches"
NORM, WHITENING, REJECTION = "actor.reward_norm", "actor.adv_norm", "actor.rejection_sampling"
SIZES = ("train_dataset.batch_size", "gconfig.n_samples", BACKEND, PARTS)
CUT = "actor.mb_spec.n_mbs"
SCHEDULE = "actor.optimizer.lr_scheduler_type"
WARMUP, FLOOR = "actor.optimizer.warmup_steps_proportion", "actor.optimizer.min_lr_ratio"
AGE, ADMITTED = "rollout.max_head_offpolicyness", "rollout.consumer_batch_size"
OFF = {"actor.discount": 1.0, "actor.gae_lambda": 1.0, "actor.mask_no_eos_with_zero": False}
"""Settings of the advantage that the schema has no field for, and the values at which they do nothing."""
ALIKE = {"actor.sapo_tau_pos": 1.0, "actor.sapo_tau_neg": 1.05}
"""SAPO's temperatures where its surrogate is the one that the schema means."""

OPENED = (
    *("gconfig.n_samples", NORM, WHITENING, *OFF, "actor.kl_ctl", "ref", "actor.kl_estimator", *ALIKE),
    *("actor.use_sapo_loss", "actor.use_decoupled_loss", "actor.prox_logp_method", "actor.m2_threshold"),
    *("actor.enable_tree_training", "actor.optimizer.type", "dynamic_bs", "total_train_steps", WARMUP, SCHEDULE),
)
"""Settings that open terms come from."""


def areal_fields(native: ArealSettings) -> dict[str, FieldValue]:
    """Canonical values by field."""
    parts = (_sizes, _length, _generated, _advantage, _objective, _trained)
    fields = {path: entry for part in parts for path, entry in part(native)}
    terms = by(tuple(sorted(open_terms(native))), "terms without a field", *OPENED)
    return fields | {"open_terms": terms}


def _sizes(native: ArealSettings) -> Iterator[tuple[str, FieldValue]]:
    """A replica's share is dealt out by length, each part in turn as many completions as another or one more. Source:
    PPOActor._ppo_update, data.split_padded_tensor_dict_into_mb_list, seqpack._ffd_allocate."""
    _, sizes = allocation(native) or ("", dict.fromkeys("dtpce", 1))
    yield "topology.world_size", by(devices(native), "the product of its dimensions", BACKEND)
    for letter, field in (("t", "tensor"), ("p", "pipeline"), ("c", "context")):
        yield f"topology.{field}_parallel", by(sizes[letter], f"its {letter}", BACKEND)
    parts, whole = native[PARTS], share(native) * sizes["d"]
    if rows_vary(native) or share(native) % parts:
        yield "optimizer_step.parts_per_rollout", FieldValue(parts, PARTS)
    else:
        size = by(whole // parts, "completions of a rollout / minibatches", *SIZES)
        yield "optimizer_step.completions_per_step", size
    if (budget := native["actor.mb_spec.max_tokens_per_mb"]) is not None:
        most = max(budget // sizes["c"], 1)
        keys = ("actor.mb_spec.max_tokens_per_mb", BACKEND)
        yield "micro_batch.tokens_per_device", by(most, "the budget / devices of a sequence", *keys)
    elif (
        (cut := native[CUT] or 1) > 1
        and sizes["p"] == 1
        and not rows_vary(native)
        and not share(native) % (parts * cut)
    ):
        size = by(share(native) // (parts * cut), "a replica's share of a step / micro-batches", CUT, *SIZES)
        yield "micro_batch.completions_per_device", size


def _length(native: ArealSettings) -> Iterator[tuple[str, FieldValue]]:
    """Source: PPOTrainer.train; WorkflowExecutor.prepare_batch, which always takes whole batches."""
    yield "horizon.epochs", FieldValue(float(native["total_train_epochs"]), "total_train_epochs")
    drops = native["train_dataset.drop_last"]
    yield "order.last_rollout", FieldValue("drop" if drops else "wrap", "train_dataset.drop_last")


def _generated(native: ArealSettings) -> Iterator[tuple[str, FieldValue]]:
    """Source: StalenessManager.get_capacity: prompts are admitted up to (age + version + 1) x consumer_batch_size."""
    age, admitted = native[AGE], (ADMITTED, "train_dataset.batch_size")
    if native[ADMITTED] != native["train_dataset.batch_size"]:
        yield "staleness.mode", by("unbounded", "what is admitted in a version is not what it trains on", *admitted)
        yield "staleness.maximum", by(None, "what is admitted in a version is not what it trains on", *admitted)
    else:
        ways = ("sync", 0, "rollouts") if not age else ("bounded", age, "weight_versions")
        ways = ("unbounded", None, "rollouts") if age >= ENDLESS else ways
        for name, value in zip(("mode", "maximum", "unit"), ways, strict=True):
            yield f"staleness.{name}", by(value, "so many versions ahead", AGE, *admitted)
    agent = native["rollout.agent"]
    if isinstance(agent, Mapping):
        yield "rollout.sample_unit", FieldValue("turn" if rows_vary(native) else "trajectory", "rollout.agent")
    temperature = 0.0 if native["gconfig.greedy"] else native["gconfig.temperature"]
    yield "carried.temperature", by(temperature, "0 where it is greedy", "gconfig.temperature", "gconfig.greedy")


def said_by_fields(native: ArealSettings) -> bool:
    """Whether the schema has words for what rewards are less, and are divided by: that of groups, or nothing.

    A deviation is taken about the mean of its level, so that one without a mean, or one over the batch of what groups
    were centred by, is none that the schema has. Source: data.Normalization.
    """
    norm, group = native[NORM], native["gconfig.n_samples"]
    if norm is None:
        return True
    levels = (norm["mean_level"], norm["std_level"])
    if levels == (None, None):
        return True
    if norm["group_size"] != group or levels not in (("group", None), ("group", "group")):
        return False
    return group > 1 or not norm["mean_leave1out"]


def _advantage(native: ArealSettings) -> Iterator[tuple[str, FieldValue]]:
    """Source: data.Normalization, of a whole rollout's rewards. The deviation about the means of the others is larger
    by n / (n - 1), as the difference to them is."""
    keys, norm, group = (NORM, "gconfig.n_samples"), native[NORM], native["gconfig.n_samples"]
    if not said_by_fields(native):
        yield "advantage.baseline", by("open", "in words of AReaL's own, an open term", *keys)
        yield "advantage.scale", by("none", "in words of AReaL's own, an open term", *keys)
        return
    centred = norm is not None and norm["mean_level"] is not None
    scaled = norm is not None and norm["std_level"] is not None
    others = norm is not None and centred and norm["mean_leave1out"]
    word = "leave_one_out" if others and not scaled else "group_mean" if centred else "none"
    yield "advantage.baseline", by(word, "rewards less a mean", *keys)
    yield "advantage.scale", by("group" if scaled else "none", "over a deviation", *keys)
    if scaled and norm is not None:
        added = norm["eps"] * ((group - 1) / group if others else 1)
        yield "advantage.epsilon", by(added, "eps, for the plain deviation", *keys)
        yield "advantage.ddof", by(int(norm["std_unbiased"]), "unbiased or not", *keys)


def _objective(native: ArealSettings) -> Iterator[tuple[str, FieldValue]]:
    soft, low = native["actor.use_sapo_loss"], native["actor.eps_clip"]
    yield "objective.surrogate", FieldValue("sapo" if soft else "ppo", "actor.use_sapo_loss")
    if not soft:
        high = low if native["actor.eps_clip_higher"] is None else native["actor.eps_clip_higher"]
        yield "objective.clip_low", FieldValue(low, "actor.eps_clip")
        yield (
            "objective.clip_high",
            by(high, "eps_clip where it is not said", "actor.eps_clip_higher", "actor.eps_clip"),
        )
        yield "objective.dual_clip", FieldValue(native["actor.c_clip"], "actor.c_clip")
    decoupled, scored = native["actor.use_decoupled_loss"], native["actor.recompute_logprob"]
    keys = ("actor.use_decoupled_loss", "actor.recompute_logprob", "actor.prox_logp_method")
    if not (decoupled and native["actor.prox_logp_method"] == "loglinear"):
        word = "rollout_start" if decoupled or scored else "sampler"
        yield "objective.old_logprobs", by(word, "scored before training, or the sampler's", *keys)
    if text := correction(native):
        yield "objective.sampler_correction", by(text, "the word and its bounds", REJECTION, *keys[:1])
    coefficient = native["actor.kl_ctl"]
    if coefficient and not against_nothing(native):
        yield "objective.kl_placement", by("reward", "taken from the rewards of tokens", "actor.kl_ctl", "ref")
        yield "objective.kl_coefficient", FieldValue(coefficient, "actor.kl_ctl")
        yield "objective.kl_estimator", FieldValue(native["actor.kl_estimator"], "actor.kl_estimator")
        yield "objective.kl_clamp", by(10.0, "so in the code", "actor.kl_estimator")
    else:
        yield "objective.kl_placement", by("none", "no KL to a reference", "actor.kl_ctl", "ref")
        yield "objective.kl_coefficient", by(0.0, "no KL to a reference", "actor.kl_ctl", "ref")


def correction(native: ArealSettings) -> str | None:
    """The correction in the words that adapters share; None where there is none. Source:
    functional.apply_rejection_sampling: its ratio has a geometric mean where it is of a sequence."""
    said = native[REJECTION]
    if said is None or not native["actor.use_decoupled_loss"]:
        return None
    least = said["lower"]
    least = None if least is None or (said["metric"] == "ratio" and least <= 0) else float(least)
    kind = "truncate" if said["action"] == "clamp" else "mask"
    metric = said["metric"].replace("ratio", "")
    if said["level"] == "sequence":  # of ratios, every token is weighed by the geometric mean
        how = [metric or "geometric_weight", said["agg"] if metric or said["agg"] != "mean" else ""]
        word = "_".join(filter(None, ("sequence", *how, kind)))
    else:
        word = "_".join(filter(None, ("token", metric, kind)))
    return f"{word} [{'-' if least is None else repr(least)}, {float(said['upper'])!r}]"


def _trained(native: ArealSettings) -> Iterator[tuple[str, FieldValue]]:
    """Source: FSDPEngine._create_optimizer, MegatronEngine._create_optimizer, archon_utils; optimizer_step."""
    megatron = engine(native) == "megatron"
    kind = native["actor.optimizer.type"]
    yield "carried.optimizer", FieldValue("sgd" if kind == "sgd" else "adamw", "actor.optimizer.type")
    excluded = "biases_and_norms" if megatron else "nothing"
    yield "carried.weight_decay_excludes", by(excluded, "the engine's", BACKEND)
    if not megatron:
        yield "objective.nonfinite_step", by("skip", "the engine's", BACKEND)
    name, floor = native[SCHEDULE], native[FLOOR]
    arguments: dict[str, Any] = {}
    if name != "constant" and floor and (megatron or name == "cosine"):
        arguments["min_lr_rate"] = floor
        name = "cosine_with_min_lr" if name == "cosine" else name
        if not megatron and native[WARMUP]:
            arguments[WARMUP_START] = floor
    text = schedule_text(name, arguments)
    yield "carried.lr_schedule", by(text, "style, floor and beginning", SCHEDULE, FLOOR, WARMUP, BACKEND)
    if native["total_train_steps"] is None:
        yield "carried.warmup_ratio", FieldValue(native[WARMUP], WARMUP)


def open_terms(native: ArealSettings) -> Iterator[str]:
    """Terms that the schema has no word for, "group: name" and a value behind it."""
    if not said_by_fields(native):
        yield f"advantage: reward_norm {json.dumps(native[NORM], sort_keys=True)}"
    if native[WHITENING] is not None:
        yield f"advantage: adv_norm {json.dumps(native[WHITENING], sort_keys=True)}"
    yield from (
        f"advantage: {key.removeprefix('actor.')} {json.dumps(native[key])}"
        for key, off in OFF.items()
        if native[key] != off
    )
    if against_nothing(native):
        yield f"objective: kl_ctl {native['actor.kl_ctl']} without a reference, {native['actor.kl_estimator']}"
    if native["actor.use_sapo_loss"]:
        changed = (key for key, value in ALIKE.items() if native[key] != value)
        yield from (f"objective: {key.removeprefix('actor.')} {native[key]}" for key in changed)
    if native["actor.use_decoupled_loss"] and native["actor.prox_logp_method"] == "loglinear":
        yield "objective: prox_logp_method loglinear"
    if native["actor.m2_threshold"] is not None:
        yield f"objective: m2_threshold {native['actor.m2_threshold']}"
    if native["actor.enable_tree_training"]:
        yield "loss: enable_tree_training true"
    if native["actor.optimizer.type"] == "adam_bf16":
        yield "carried: optimizer.type adam_bf16"
    if native["dynamic_bs"]:
        yield "rollout: dynamic_bs true"
    if native["total_train_steps"] is not None and (native[WARMUP] or native[SCHEDULE] != "constant"):
        yield f"carried: schedule over all epochs, warm-up {native[WARMUP]}"
