"""verl's programs that generate while they train: what they have otherwise than `ppo_trainer`, and what it means.

Source: verl 0.7.1 to 0.9.1 experimental/{one_step_off_policy,fully_async_policy}/config; 0.8.0 to 0.9.1
fully_async_policy/{fully_async_main,fully_async_rollouter,fully_async_trainer}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.key_table import Key
from batchbridge.kit.omegaconf_kinds import FLOAT, INT, OPTIONAL_INT, TRUTH
from batchbridge.kit.values import FieldValue, by
from batchbridge_verl.run import FULLY_ASYNC, MINI, PROMPTS, REQUIRED, STRATEGY, THRESHOLD, TRAINER_MODE, VerlRun
from batchbridge_verl.settings import ACTOR, ROLLOUT, holds

PROGRAM_OF: Mapping[str, str] = {
    "one_step_off_ppo_trainer": "one_step_off",
    "one_step_off_ppo_megatron_trainer": "one_step_off",
    "fully_async_ppo_trainer": FULLY_ASYNC,
    "fully_async_ppo_megatron_trainer": FULLY_ASYNC,
}
"""Configuration -> the program that it belongs to."""
STALE, SYNCHRONISED = "async_training.staleness_threshold", "async_training.trigger_parameter_sync_step"
TOTAL, HYBRID = "rollout.total_rollout_steps", "actor_rollout_ref.hybrid_engine"
LOG_PROBS = f"{ROLLOUT}calculate_log_probs"
SETTINGS: tuple[Key, ...] = (
    Key(REQUIRED, INT, 1),
    Key(STALE, FLOAT, 0.1),
    Key(SYNCHRONISED, INT, 4),
    Key(TOTAL, OPTIONAL_INT, 100),
    Key(HYBRID, TRUTH, True),
    Key(LOG_PROBS, TRUTH, False),
)
"""Settings that fully_async alone is read by."""
_BOTH: Mapping[str, Any] = {
    "rollout.nnodes": 1,
    "rollout.n_gpus_per_node": 8,
    LOG_PROBS: True,
    f"{ROLLOUT}checkpoint_engine.backend": "nccl",
    "algorithm.rollout_correction.bypass_mode": True,
}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "one_step_off": {f"{ROLLOUT}free_cache_engine": False},
    FULLY_ASYNC: {
        STALE: 0.1,
        SYNCHRONISED: 4,
        REQUIRED: 1,
        "async_training.partial_rollout": True,
        "async_training.use_trainer_do_validate": False,
        "rollout.n": 4,
        TOTAL: 100,
        "data.gen_batch_size": 1,
        f"{ACTOR}use_rollout_log_probs": True,
        "actor_rollout_ref.model.use_remove_padding": True,
    },
}
_SINCE_090: Mapping[str, Any] = {
    "async_training.use_dynamic_resource_scheduling": False,
    "async_training.dynamic_schedule_policy": "default",
    "async_training.dynamic_schedule_deactivate_ratio": 0.3,
    "async_training.dynamic_schedule_enable_rebalance": True,
    "async_training.concurrent_samples_per_replica": 16,
    f"{ROLLOUT}standalone_gpu_memory_utilization": None,
}


ON_THE_TRAINERS_DEVICES = ("async_training.use_trainer_do_validate", "async_training.use_dynamic_resource_scheduling")
"""Settings of fully_async by which engines on the trainer's own devices generate, too: they are given weights in
another way."""
OBSERVED_ALONE = (
    "the trainer of verl's fully_async_policy is observed alone: it takes what is generated first, and no plan of it "
    "is proven"
)


def own_defaults(program: str, version: str) -> Mapping[str, Any]:
    """Dotted key to default, of what a program's own configuration says otherwise than verl's main one."""
    if program not in _OWN or holds("<0.7.1", version):  # before, they were in verl's repository alone
        return {}
    old = {"trainer.use_legacy_worker_impl": "disable"} if holds("<0.8.0", version) else {}
    new = _SINCE_090 if program == FULLY_ASYNC and holds(">=0.9.0", version) else {}
    return {**_BOTH, **_OWN[program], **old, **new}


def staleness(run: VerlRun) -> dict[str, FieldValue]:
    """The allowed age of completions: one_step_off's are one rollout old; what fully_async and the V1 trainer count."""
    if run.entry == "one_step_off":
        ahead = "one_step_off_policy generates one rollout ahead"
        return {"staleness.mode": by("lookahead", ahead), "staleness.maximum": by(1, ahead)}
    if run.entry == FULLY_ASYNC:
        return _fully_async_staleness(run)
    return _v1_staleness(run) if run.ahead else {}


def _v1_staleness(run: VerlRun) -> dict[str, FieldValue]:
    """The staleness of the V1 trainer. Source: verl 0.9.1 replay_buffer.ReplayBufferAsync: a group that spans more than
    the threshold's rollouts is dropped; "wait" waits for those that still run, not for those that lie there
    finished."""
    threshold = run[THRESHOLD]
    if threshold is not None and run[STRATEGY] == "drop":
        counted = "rollouts that a group spans, its own not counted"
        mode, maximum = "bounded", FieldValue(threshold - 1, THRESHOLD, counted)
    else:
        mode, maximum = "unbounded", FieldValue(None, THRESHOLD if threshold is None else STRATEGY)
    return {"staleness.mode": FieldValue(mode, TRAINER_MODE), "staleness.maximum": maximum}


def _fully_async_staleness(run: VerlRun) -> dict[str, FieldValue]:
    """The staleness of fully_async: with staleness_threshold 0 the generator stops until the next weights. Above, it
    bounds how many prompts are begun before them: each of those goes on over any number of synchronisations, so that no
    age is certain."""
    every = f"weights are handed over every {run[SYNCHRONISED]} rollouts"
    values = {"staleness.unit": by("weight_versions", every, SYNCHRONISED)}
    if run[STALE]:
        what = f"{run[STALE]:g} of what is trained between two of them may be begun with the older weights"
        return values | {"staleness.mode": FieldValue("unbounded", STALE), "staleness.maximum": by(None, what, STALE)}
    what = "what is trained between two of them is generated with the first ones"
    return values | {"staleness.mode": FieldValue("bounded", STALE), "staleness.maximum": by(0, what, STALE)}


def sizes(run: VerlRun) -> dict[str, FieldValue]:
    """fully_async's rollout, which is what its trainer takes from the queue at once, and the length of the run."""
    if run.entry != FULLY_ASYNC:
        return {}
    taken = f"{MINI} {run[MINI]} x {REQUIRED} {run[REQUIRED]}; {PROMPTS} has to be 0"
    over = "the generator goes on into the next epoch"
    values = {
        "rollout.prompts_per_rollout": by(run.prompts_per_rollout, taken, MINI, REQUIRED),
        "order.last_rollout": by("wrap", over),
        "horizon.epochs": FieldValue(float(run["trainer.total_epochs"]), "trainer.total_epochs"),
        "horizon.rollouts": by(None, "total_training_steps is not read", "trainer.total_training_steps"),
    }
    if (prompts := run[TOTAL]) is not None:
        length = f"{TOTAL} {prompts} prompts // {run.prompts_per_rollout}"
        values["horizon.rollouts"] = by(prompts // run.prompts_per_rollout, length, TOTAL)
    return values
