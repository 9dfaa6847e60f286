"""Rules about what the GRPO scripts do silently: rows dropped, weights that depend on the split, settings not read."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit.rule_table import NOTE, SILENT, RuleKind
from batchbridge.kit.versions import holds
from batchbridge_open_instruct.rules.row import (
    ALL,
    BOTH,
    CORE,
    FAST,
    UNREAD,
    OpenInstructFacts,
    RuleSubject,
    remove,
    ways,
)
from batchbridge_open_instruct.settings import BEFORE_1, FROM_1, FROM_3, GROUP, GRPO, NODES, PPO, SCRIPT


def _rows_dropped(facts: OpenInstructFacts) -> str | None:
    if facts.replicas < 2:
        return None
    told, left = "a warning in the log, no metric", "the row length itself shrinks with the replicas"
    if facts.first:
        told = "without a word"
        left = "with fewer rows than learners nothing is left, unless allow_world_padding adds empty rows"
    return (
        f"packed rows beyond a multiple of {facts.replicas} replicas are dropped after every rollout ({told}): up to a "
        f"quarter of the response tokens where rows are few for many replicas; {left}"
    )


def _mini_batches(facts: OpenInstructFacts) -> str | None:
    parts = facts["num_mini_batches"]
    if parts == 1:
        return None
    if facts[SCRIPT] == GRPO:
        return (
            f"num_mini_batches {parts} cuts each rank's m micro-batches into groups of ceil(m / {parts}): a rollout "
            f"may have fewer than {parts} optimizer steps, and the last is smaller"
        )
    return (
        f"num_mini_batches {parts} is a request: a step takes max(ceil(m / {parts} - 0.5), 1) of each rank's m "
        f"micro-batches, so that a rollout may have more or fewer than {parts} optimizer steps (7 micro-batches in "
        "4: 3 steps; 10 in 4: 5), micro-batches left over are dropped, and the learning rate's schedule, which "
        f"counts {parts}, drifts"
    )


def _accumulation(facts: OpenInstructFacts) -> str | None:
    if "gradient_accumulation_steps" not in facts.given_places:
        return None
    if facts[SCRIPT] == PPO:
        return "gradient_accumulation_steps is overwritten by local_mini_batch_size / per_device_train_batch_size"
    return "gradient_accumulation_steps is taken and never read: num_mini_batches decides how micro-batches accumulate"


def _left(facts: OpenInstructFacts) -> int:
    """Completions that fill no rollout."""
    return int(facts["total_episodes"] % facts.completions) if facts.completions else 0


def _episodes_left(facts: OpenInstructFacts) -> str | None:
    episodes = facts["total_episodes"]
    if not _left(facts) or episodes < facts.completions:
        return None
    return (
        f"{_left(facts)} of total_episodes {episodes} do not fill a rollout of {facts.completions} completions and are "
        "not trained"
    )


def _whole_rollouts(facts: OpenInstructFacts) -> tuple[int, ...]:
    lower = facts["total_episodes"] - _left(facts)
    return lower, lower + facts.completions


def _shrinking(facts: OpenInstructFacts) -> str | None:
    if not facts["filter_zero_std_samples"] or facts["active_sampling"] or facts["async_steps"] < 1:
        return None
    return (
        "groups whose rewards are all equal are dropped and not replaced: a rollout trains on fewer than "
        f"{facts.completions} completions, while total_episodes counts all of them"
    )


def _other_filters(facts: OpenInstructFacts) -> tuple[Fix, ...]:
    """None before, when the script's code fixed both settings."""
    return ways(active_sampling=True, filter_zero_std_samples=False)(facts) if holds(FROM_1, facts.checkout) else ()


def _lost_targets(facts: OpenInstructFacts) -> str | None:
    size = facts["sequence_parallel_size"]
    if size == 1:
        return None
    return (
        f"rows are cut into {size} chunks before labels are shifted: a target at each of a row's {size - 1} cuts is "
        "never predicted; and DeepSpeed averages gradients over all ranks, where Open-Instruct multiplies the loss by "
        f"the replicas: they are {size} times too small"
    )


_LOST = (
    "#1498, its commit message; deepspeed>=0.18.3 from #1311 (d526c5d13, 2025-12-27) on, which does so, and "
    "<0.17.6 in 2025.10.20, which adds up (both measured on CPU, tests/adapters/openrlhf/record_deepspeed.py)"
)
_DECAY = "set_weight_decay_on_bias_and_norm"

GRPO_SILENT = (
    RuleSubject("BB-OI-050", SILENT, BOTH, "data_loader.py, prepare_collated_data_for_workers")(
        _rows_dropped,
        (NODES, "pack_length"),
        fixes=ways(Fix("more completions per rollout for each replica, or a smaller pack_length, lose less")),
    ),
    RuleSubject(
        "BB-OI-051",
        RuleKind("warning", "first_rollout", defect=True),
        BOTH,
        "#1660; data_loader.py, run on CPU",
        FROM_3,
    ).when(
        {"mask_truncated_completions": [True]},
        f"truncated completions are taken out before rewards are reshaped into groups of {{{GROUP}}}: groups are "
        f"misaligned without an error where the rest is a multiple of {{{GROUP}}}, and a ValueError otherwise",
        fixes=ways(mask_truncated_completions=False),
        also=(GROUP,),
    ),
    RuleSubject("BB-OI-052", SILENT, BOTH, "grpo_fast.py, step; olmo_core_train_modules.py")(
        _mini_batches, ("num_mini_batches", "per_device_train_batch_size"), fixes=ways(num_mini_batches=1)
    ),
    RuleSubject("BB-OI-053", UNREAD, ALL, "grpo_fast.py: DeepSpeed's accumulation is fixed to 1")(
        _accumulation, ("gradient_accumulation_steps",), fixes=ways(remove("gradient_accumulation_steps"))
    ),
    RuleSubject("BB-OI-054", NOTE, ALL, "total_episodes // completions")(
        _episodes_left, ("total_episodes",), fixes=ways(total_episodes=_whole_rollouts)
    ),
    RuleSubject("BB-OI-055", NOTE, BOTH, "data_loader.py, accumulate_inference_batches")(
        _shrinking, ("filter_zero_std_samples", "active_sampling"), fixes=_other_filters
    ),
    RuleSubject("BB-OI-056", SILENT, FAST, "grpo_fast.py, #1309")(_lost_targets, ("sequence_parallel_size",)),
    RuleSubject("BB-OI-057", SILENT, CORE, "grpo.py").when(
        {"sequence_parallel_size": {"not": [1]}},
        "grpo.py takes sequence_parallel_size and never reads it",
        fixes=ways(sequence_parallel_size=1),
    ),
    RuleSubject("BB-OI-058", SILENT, CORE, "olmo_core_train_modules.py").when(
        {"num_epochs": {"not": [1]}, "num_mini_batches": {"not": [1]}},  # of 1 mini-batch, a group is a whole pass
        "accumulation groups run on from one pass into the next, their denominators do not: where a pass has no whole "
        "number of groups, both are misaligned (read in the source, not run)",
        fixes=ways(num_epochs=1, num_mini_batches=1),
    ),
    RuleSubject("BB-OI-059", SILENT, FAST, _LOST, f"{FROM_1},<2026.3.1").when(
        {"deepspeed_stage": [2]},
        "under ZeRO-2 only the last micro-batch of an accumulation group keeps its gradient",
        fixes=ways(Fix("a checkout from 2026-02-26 on"), deepspeed_stage=3),
        also=("per_device_train_batch_size",),
    ),
    RuleSubject("BB-OI-060", SILENT, BOTH, "grpo_fast.py, from_pretrained").when(
        {_DECAY: [False]},
        f"with {_DECAY} off, AdamW gets no weight_decay and takes its own 0.01, for biases and norms too; on, biases "
        "and norms have none: the opposite of what the name says",
        fixes=ways(set_weight_decay_on_bias_and_norm=True),
        also=("weight_decay",),
    ),
    RuleSubject("BB-OI-061", RuleKind("note", "never", defect=True), BOTH, "data_loader.py, DataPreparationActor").when(
        {},
        "the seed does not fix a run: rollouts take results as they finish, and rows are permuted by random numbers "
        "that nothing seeds",
        also=("seed",),
    ),
    RuleSubject("BB-OI-067", SILENT, FAST, "grpo_fast.py, masked_mean; repaired by #1161 (7708f0adf)", BEFORE_1).when(
        {},
        "the loss is the mean over the tokens of each micro-batch of packed rows, averaged over micro-batches and "
        "learners: the gradient depends on packing, on the split and on the world size",
        fixes=ways(Fix("a checkout from 2025-12-01 on (#1161) divides by the step's tokens")),
        also=("per_device_train_batch_size", "pack_length", NODES),
    ),
)
