"""The meaning of EasyR1's settings: a run to canonical values."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit.key_table import field_values
from batchbridge.kit.schedules import schedule_text
from batchbridge.kit.score_ranges import group_filter
from batchbridge.kit.values import FieldValue, devices
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import AGGREGATIONS, holds, settings_of
from batchbridge_easyr1.settings import KL_ESTIMATORS as KL_ESTIMATORS

LOSS_TYPES: Mapping[str, tuple[str, str, bool]] = {
    # loss_type -> surrogate, what the ratio is taken over, whether it clips. Source: EasyR1 core_algos (0.3.3.dev0)
    "default": ("ppo", "token", True),
    "gspo": ("ppo", "sequence", True),  # clipped as ppo is; what differs is what the ratio is taken over
    "gspo_token": ("gspo_token", "sequence", True),
    "cispo": ("cispo", "token", True),
    "sapo": ("sapo", "token", False),
}
DUAL_CLIPPED = ("ppo", "gspo_token")
ESTIMATORS: Mapping[str, tuple[str, str, float | None, int | None]] = {
    # adv_estimator -> baseline, scale, epsilon, ddof. Source: EasyR1 core_algos
    "grpo": ("group_mean", "group", 1e-6, 1),
    "rloo": ("leave_one_out", "none", None, None),
    "reinforce_plus_plus": ("none", "batch", None, 1),
    "gae": ("value", "batch", None, 1),
}
INEXPRESSIBLE = {
    "remax": "its baseline is the reward of a greedy completion",
    "grpo_passk": "only the best completion of a group has an advantage",
}


def estimators_of(version: str) -> tuple[str, ...]:
    """The words that `version` has for `algorithm.adv_estimator`."""
    has_passk = holds(">=0.3.3.dev0", version)
    return tuple(name for name in (*ESTIMATORS, *INEXPRESSIBLE) if name != "grpo_passk" or has_passk)


RENAMED = {
    f"{names.ACTOR}ulysses_size": f"{names.ACTOR}ulysses_sequence_parallel_size",
    "trainer.total_epochs": "trainer.total_episodes",
}
"""Key from 0.3.1 on -> the key before."""
STARTS_AT_ZERO = "<0.3.3.dev0"
"""Versions whose schedule is min(1, tick / max(1, warm-up)): no warm-up is one of a tick. Source: EasyR1
torch_functional.get_constant_schedule_with_warmup; the learning rates in tests/adapters/easyr1/recorded."""
ENDS_WITH_EPOCHS = "<0.3.1"
"""Versions whose loop ends with its epochs, of which each has a rollout at least, whatever max_steps says. Source:
EasyR1 0.3.0 trainer/ray_trainer.py fit; 0.3.1 on begins another epoch."""
KL_CLAMP = 10.0
"""Bound of k3. Source: EasyR1 core_algos.compute_kl."""


def meaning(run: EasyR1Run) -> dict[str, FieldValue] | None:
    """Canonical field (dotted) -> what the run says; None where sizes, loss or advantages are left open."""
    # An unknown loss is the default one: BB-EZR1-028.
    surrogate, level, clips = LOSS_TYPES.get(run[names.LOSS_TYPE], LOSS_TYPES["default"])
    estimator = ESTIMATORS.get(run[names.ESTIMATOR])
    if run[names.MODE] not in AGGREGATIONS or estimator is None or not run.plain or run.completions_per_step < 1:
        return None
    values = field_values((row for row in settings_of(run.version).values() if run[row.key] is not None), run.native)
    for name, value in zip(("baseline", "scale", "epsilon", "ddof"), estimator, strict=True):
        values[f"advantage.{name}"] = FieldValue(value, None, "fixed in core_algos")
    sizes = (names.BATCH, names.GROUP)
    asked = " x ".join(f"{key} {run[key]}" for key in sizes)
    share = f"{asked} / {run.replicas} replicas, floored, = {run.share} on each"
    values |= {
        "topology.world_size": devices(run.world, run.native, names.NODES, names.GPUS),
        "optimizer_step.completions_per_step": FieldValue(run.completions_per_step, None, share, sizes),
        "advantage.baseline": FieldValue(estimator[0], names.ESTIMATOR),
        "advantage.scale": FieldValue(estimator[1], None, f"{run[names.ESTIMATOR]} scales so", (names.ESTIMATOR,)),
    }
    values |= CONSTANTS
    values.setdefault("loss.policy.aggregation", FieldValue(AGGREGATIONS[run[names.MODE]], None, "token mean"))
    if run[names.FILTER]:
        low, high = run[names.FILTER_LOW], run[names.FILTER_HIGH]
        formula = f"filter_low {low:g} to filter_high {high:g} of the mean of {run[names.GROUP]} scores, each 0 or 1"
        keys = (names.FILTER, names.FILTER_LOW, names.FILTER_HIGH, names.GROUP)
        values["rollout.group_filter"] = FieldValue(group_filter(low, high, run[names.GROUP]), None, formula, keys)
    steps = run["trainer.max_steps"]
    if steps is None or (holds(ENDS_WITH_EPOCHS, run.version) and run[run.epochs_key] < steps):
        values["horizon.epochs"] = FieldValue(float(run[run.epochs_key]), run.epochs_key)
    values["objective.surrogate"] = (
        FieldValue(surrogate, names.LOSS_TYPE)
        if names.LOSS_TYPE in run.native
        else FieldValue(surrogate, None, "the only loss")
    )
    values["objective.ratio_level"] = FieldValue(level, None, f"loss_type {run[names.LOSS_TYPE]}", (names.LOSS_TYPE,))
    read = {"objective.clip_low": clips, "objective.clip_high": clips, "objective.dual_clip": surrogate in DUAL_CLIPPED}
    values = {path: entry for path, entry in values.items() if read.get(path, True)}
    return values | _micro_batch(run) | _kl(run) | _optimizer(run)


CONSTANTS: Mapping[str, FieldValue] = {
    "order.last_rollout": FieldValue("drop", None, "the data loader drops an epoch's incomplete batch"),
    "order.last_optimizer_step": FieldValue("error", None, "DataProto.split asserts whole mini-batches"),
    "horizon.lr_tick": FieldValue("rollout", None, "the scheduler steps once per update of the actor"),
    "objective.old_logprobs": FieldValue("rollout_start", None, "computed once, before the first update"),
    "objective.entropy_coefficient": FieldValue(0.0, None, "entropy is a metric only"),
    "objective.nonfinite_step": FieldValue("skip", None, "the optimizer step is left out when the norm is not finite"),
    "carried.optimizer_epsilon": FieldValue(1e-8, None, "torch's default"),
    "carried.weight_decay_excludes": FieldValue("nothing", None, "one group of parameters"),
    "carried.dropout": FieldValue("on", None, "as the model's configuration says"),
}
"""Canonical values that EasyR1's code fixes."""


def _micro_batch(run: EasyR1Run) -> dict[str, FieldValue]:
    """Sizes of a device's micro-batches: of a budget, what is left of it where devices share a sequence, rounded up."""
    values, shared = {}, run[run.ulysses_key]
    by, shares = (f" / {run.ulysses_key} {shared}", (run.ulysses_key,)) if shared > 1 else ("", ())
    for name, key in (("", names.MICRO), ("forward_", names.FORWARD)):
        if key == names.FORWARD and run[names.FORWARD] == run[names.MICRO]:
            continue
        if not run[names.DYNAMIC]:
            values[f"micro_batch.{name}completions_per_device"] = FieldValue(run[key], key)
            continue
        formula = f"{key} {run[key]} x ({names.PROMPT_TOKENS} + {names.RESPONSE_TOKENS} = {run.longest}){by}"
        keys = (key, names.PROMPT_TOKENS, names.RESPONSE_TOKENS, *shares)
        values[f"micro_batch.{name}tokens_per_device"] = FieldValue(
            -(-run[key] * run.longest // shared), None, formula, keys
        )
    return values


def _kl(run: EasyR1Run) -> dict[str, FieldValue]:
    off = "algorithm.disable_kl"
    if run[off]:
        values = {"kl_placement": FieldValue("none", off), "kl_coefficient": FieldValue(0.0, None, off, (off,))}
    else:
        estimator = KL_ESTIMATORS.get(run["algorithm.kl_penalty"], run["algorithm.kl_penalty"])
        values = {
            "kl_placement": FieldValue("loss" if run["algorithm.use_kl_loss"] else "reward", "algorithm.use_kl_loss"),
            "kl_coefficient": FieldValue(run["algorithm.kl_coef"], "algorithm.kl_coef"),
            "kl_estimator": FieldValue(estimator, "algorithm.kl_penalty"),
        }
        if estimator == "k3":
            values["kl_clamp"] = FieldValue(KL_CLAMP, None, "fixed in core_algos.compute_kl")
    return {f"objective.{name}": entry for name, entry in values.items()}


def _optimizer(run: EasyR1Run) -> dict[str, FieldValue]:
    scheduler, floor, key = (f"{names.ACTOR}optim.{name}" for name in ("lr_scheduler_type", "min_lr_ratio", "betas"))
    betas, schedule = run[key], str(run[scheduler])
    two = len(betas) == 2 and all(isinstance(beta, (int, float)) for beta in betas)
    if schedule == "cosine":
        schedule = schedule_text("cosine_with_min_lr", {"min_lr_rate": run[floor] or 0.0})
    values = {f"beta{at + 1}": FieldValue(float(betas[at]) if two else None, None, key, (key,)) for at in range(2)}
    values["lr_schedule"] = FieldValue(schedule, None, f"{scheduler}, {floor}", (scheduler, floor))
    steps, share, both = run[names.WARMUP_STEPS], run[names.WARMUP_SHARE], (names.WARMUP_STEPS, names.WARMUP_SHARE)
    if steps:
        values["warmup_steps"] = FieldValue(float(steps), None, names.WARMUP_STEPS, (names.WARMUP_STEPS,))
    elif steps is None and share:
        values["warmup_ratio"] = FieldValue(share, names.WARMUP_SHARE)
    elif holds(STARTS_AT_ZERO, run.version):
        values["warmup_steps"] = FieldValue(1.0, None, "without a warm-up the first rollout's learning rate is 0", both)
    else:
        values["warmup_steps"] = FieldValue(0.0, None, f"{names.WARMUP_SHARE} is 0", both)
    return {f"carried.{name}": entry for name, entry in values.items()}
