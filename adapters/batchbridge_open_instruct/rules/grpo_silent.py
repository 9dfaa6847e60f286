"""What the GRPO scripts do silently: completions dropped, weights that depend on the split, settings not read."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge_open_instruct.rules.row import (
    BOTH,
    CORE,
    FAST,
    Facts,
    Problem,
    Rule,
    from_1,
    ppo_rollout,
    setting,
)
from batchbridge_open_instruct.settings import BEFORE_1, FROM_1, FROM_3, GRPO, PPO, SCRIPT


def _rows_dropped(facts: Facts) -> Problem | None:
    if facts.replicas < 2:
        return None
    first = "masked_mean_axis" in facts.native
    return Problem(
        f"packed rows beyond a multiple of {facts.replicas} replicas are dropped after every rollout "
        + ("(without a word" if first else "(a warning in the log, no metric")
        + "): up to a quarter of the response tokens where rows are few for many replicas; "
        + (
            "with fewer rows than learners nothing is left, unless allow_world_padding adds empty rows"
            if first
            else "the row length itself shrinks with the replicas"
        ),
        ("num_learners_per_node", "pack_length"),
        (Fix("more completions per rollout for each replica, or a smaller pack_length, lose less"),),
    )


def _truncated(facts: Facts) -> Problem | None:
    if not facts.native["mask_truncated_completions"]:
        return None
    group = facts.native["num_samples_per_prompt_rollout"]
    return Problem(
        f"truncated completions are taken out before rewards are reshaped into groups of {group}: groups are "
        f"misaligned without an error where the rest is a multiple of {group}, and a ValueError otherwise",
        ("mask_truncated_completions", "num_samples_per_prompt_rollout"),
        (setting("mask_truncated_completions", False),),
    )


def _mini_batches(facts: Facts) -> Problem | None:
    parts = facts.native["num_mini_batches"]
    if parts == 1:
        return None
    if facts.native[SCRIPT] == GRPO:
        message = (
            f"num_mini_batches {parts} cuts each rank's m micro-batches into groups of ceil(m / {parts}): a rollout "
            f"may have fewer than {parts} optimizer steps, and the last is smaller"
        )
    else:
        message = (
            f"num_mini_batches {parts} is a request: a step takes max(ceil(m / {parts} - 0.5), 1) of each rank's m "
            f"micro-batches, so that a rollout may have more or fewer than {parts} optimizer steps (7 micro-batches in "
            "4: 3 steps; 10 in 4: 5), micro-batches left over are dropped, and the learning rate's schedule, which "
            f"counts {parts}, drifts"
        )
    return Problem(message, ("num_mini_batches", "per_device_train_batch_size"), (setting("num_mini_batches", 1),))


def _accumulation(facts: Facts) -> Problem | None:
    if "gradient_accumulation_steps" not in facts.given:
        return None
    message = (
        "gradient_accumulation_steps is taken and never read: num_mini_batches decides how micro-batches accumulate"
    )
    if facts.native[SCRIPT] == PPO:
        message = "gradient_accumulation_steps is overwritten by local_mini_batch_size / per_device_train_batch_size"
    fix = Fix("remove gradient_accumulation_steps", {"gradient_accumulation_steps": None})
    return Problem(message, ("gradient_accumulation_steps",), (fix,))


def _episodes_left(facts: Facts) -> Problem | None:
    native = facts.native
    completions = facts.completions if native[SCRIPT] != PPO else ppo_rollout(native)
    rest = native["total_episodes"] % completions if completions else 0
    if not rest or native["total_episodes"] < completions:
        return None
    lower = native["total_episodes"] - rest
    return Problem(
        f"{rest} of total_episodes {native['total_episodes']} do not fill a rollout of {completions} completions and "
        "are not trained",
        ("total_episodes",),
        (setting("total_episodes", lower), setting("total_episodes", lower + completions)),
    )


def _shrinking(facts: Facts) -> Problem | None:
    native = facts.native
    if not native["filter_zero_std_samples"] or native["active_sampling"] or native["async_steps"] < 1:
        return None
    return Problem(
        "groups whose rewards are all equal are dropped and not replaced: a rollout trains on fewer than "
        f"{facts.completions} completions, while total_episodes counts all of them",
        ("filter_zero_std_samples", "active_sampling"),
        from_1(facts, setting("active_sampling", True), setting("filter_zero_std_samples", False)),
    )


def _lost_targets(facts: Facts) -> Problem | None:
    size = facts.native["sequence_parallel_size"]
    if size == 1:
        return None
    return Problem(
        f"rows are cut into {size} chunks before labels are shifted: a target at each of a row's {size - 1} cuts is "
        "never predicted; and DeepSpeed averages gradients over all ranks, where Open-Instruct multiplies the loss by "
        f"the replicas: they are {size} times too small",
        ("sequence_parallel_size",),
    )


def _ignored_sequence_parallel(facts: Facts) -> Problem | None:
    if facts.native["sequence_parallel_size"] == 1:
        return None
    message = "grpo.py takes sequence_parallel_size and never reads it"
    return Problem(message, ("sequence_parallel_size",), (setting("sequence_parallel_size", 1),))


def _epochs_misaligned(facts: Facts) -> Problem | None:
    if facts.native["num_epochs"] < 2 or facts.native["num_mini_batches"] < 2:  # one group is a whole pass
        return None
    return Problem(
        "accumulation groups run on from one pass into the next, their denominators do not: where a pass has no whole "
        "number of groups, both are misaligned (read in the source, not run)",
        ("num_epochs", "num_mini_batches"),
        (setting("num_epochs", 1), setting("num_mini_batches", 1)),
    )


def _zero_two(facts: Facts) -> Problem | None:
    if facts.native["deepspeed_stage"] != 2:
        return None
    return Problem(
        "under ZeRO-2 only the last micro-batch of an accumulation group keeps its gradient",
        ("deepspeed_stage", "per_device_train_batch_size"),
        (setting("deepspeed_stage", 3), Fix("a checkout from 2026-02-26 on")),
    )


def _decay_off(facts: Facts) -> Problem | None:
    if facts.native["set_weight_decay_on_bias_and_norm"]:
        return None
    return Problem(
        "with set_weight_decay_on_bias_and_norm off, AdamW gets no weight_decay and takes its own 0.01, for biases and "
        "norms too; on, biases and norms have none: the opposite of what the name says",
        ("set_weight_decay_on_bias_and_norm", "weight_decay"),
        (setting("set_weight_decay_on_bias_and_norm", True),),
    )


def _order_unseeded(facts: Facts) -> Problem | None:
    return Problem(
        "the seed does not fix a run: rollouts take results as they finish, and rows are permuted by random numbers "
        "that nothing seeds",
        ("seed",),
    )


def _means_of_means(facts: Facts) -> Problem | None:
    return Problem(
        "the loss is the mean over the tokens of each micro-batch of packed rows, averaged over micro-batches and "
        "learners: the gradient depends on packing, on the split and on the world size",
        ("per_device_train_batch_size", "pack_length", "num_learners_per_node"),
        (Fix("a checkout from 2025-12-01 on (#1161) divides by the step's tokens"),),
    )


_LOST = (
    "#1498, its commit message; deepspeed>=0.18.3 from #1311 (d526c5d13, 2025-12-27) on, which does so, and "
    "<0.17.6 in 2025.10.20, which adds up (both measured on CPU, tests/adapters/openrlhf/record_deepspeed.py)"
)

GRPO_SILENT: tuple[Rule, ...] = (
    Rule(
        "BB-OI-050",
        "warning",
        "never",
        _rows_dropped,
        BOTH,
        "data_loader.py, prepare_collated_data_for_workers",
        defect=True,
    ),
    Rule(
        "BB-OI-051",
        "warning",
        "first_rollout",
        _truncated,
        BOTH,
        "#1660; data_loader.py, run on CPU",
        versions=FROM_3,
        defect=True,
    ),
    Rule(
        "BB-OI-052",
        "warning",
        "never",
        _mini_batches,
        BOTH,
        "grpo_fast.py, step; olmo_core_train_modules.py",
        defect=True,
    ),
    Rule(
        "BB-OI-053",
        "warning",
        "never",
        _accumulation,
        (*BOTH, PPO),
        "grpo_fast.py: DeepSpeed's accumulation is fixed to 1",
    ),
    Rule("BB-OI-054", "note", "never", _episodes_left, (*BOTH, PPO), "total_episodes // completions"),
    Rule("BB-OI-055", "note", "never", _shrinking, BOTH, "data_loader.py, accumulate_inference_batches"),
    Rule("BB-OI-056", "warning", "never", _lost_targets, FAST, "grpo_fast.py, #1309", defect=True),
    Rule("BB-OI-057", "warning", "never", _ignored_sequence_parallel, CORE, "grpo.py", defect=True),
    Rule("BB-OI-058", "warning", "never", _epochs_misaligned, CORE, "olmo_core_train_modules.py", defect=True),
    Rule(
        "BB-OI-059",
        "warning",
        "never",
        _zero_two,
        FAST,
        _LOST,
        versions=f"{FROM_1},<2026.3.1",
        defect=True,
    ),
    Rule("BB-OI-060", "warning", "never", _decay_off, BOTH, "grpo_fast.py, from_pretrained", defect=True),
    Rule("BB-OI-061", "note", "never", _order_unseeded, BOTH, "data_loader.py, DataPreparationActor", defect=True),
    Rule(
        "BB-OI-067",
        "warning",
        "never",
        _means_of_means,
        FAST,
        "grpo_fast.py, masked_mean; repaired by #1161 (7708f0adf)",
        versions=BEFORE_1,
        defect=True,
    ),
)
