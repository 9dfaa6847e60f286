"""What TRL before 0.18 refused: groups, evaluations and Liger's loss, once the model had been loaded."""

from __future__ import annotations

from batchbridge.kit.rule_table import BUILDING, GENERATING
from batchbridge_trl.rules.facts import (
    ACCUMULATION,
    EVAL_MICRO,
    GENERATIONS,
    INIT,
    MICRO,
    SIZES,
    Facts,
    Rule,
)
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.rules.groups import (
    DIVISIBLE,
    among_divisors,
    at_least_two,
    evaluation_groups_among_divisors,
    groups_among_divisors,
)
from batchbridge_trl.rules.later import not_positive
from batchbridge_trl.world import KEY as WORLD

_LATE = "after the model has been loaded"


def _liger_loss_type(facts: Facts) -> str | None:
    name = facts.native["loss_type"]
    return f"loss_type = {name}: Liger's kernel computes bnpo only" if facts.liger and name != "bnpo" else None


def _global_train_batch(facts: Facts) -> str:
    s = facts.sizes
    return (
        f"ValueError: The global train batch size ({s.world} x {s.micro}) must be evenly divisible by the number of "
        f"generations per prompt ({s.generations}), from GRPOTrainer.__init__, after the model has been loaded"
    )


def negative_step(facts: Facts) -> str | None:
    """A step of fewer than 0 completions, as 0.17 comes upon it: its log keeps so many texts."""
    s = facts.sizes
    if facts.generation_batch >= 0:
        return None
    return (
        f"{MICRO} {s.micro} x {WORLD} {s.world} x {ACCUMULATION} {s.accumulation} = {facts.generation_batch}: no step "
        "has so many completions"
    )


def groups_of_a_possible_step(facts: Facts) -> str | None:
    """`groups_among_divisors`, where `negative_step` has not been first."""
    return None if negative_step(facts) else groups_among_divisors(facts)


def whole_groups_per_micro_step(facts: Facts) -> str | None:
    """Micro-batches, over all devices, that do not hold whole groups: before 0.17."""
    s = facts.sizes
    if among_divisors(s.generations, s.micro * s.world):
        return None
    return (
        f"{MICRO} {s.micro} x {WORLD} {s.world} = {s.micro * s.world} (completions per micro-batch, over all devices) "
        f"is no multiple of {GENERATIONS} = {s.generations} (completions per prompt, at least 2); accumulation does "
        "not count before trl 0.17"
    )


ROWS: tuple[Rule, ...] = (
    BUILDING(
        "BB-TRL-041",
        _liger_loss_type,
        ("use_liger_loss", "loss_type"),
        "ValueError: The provided loss type is not supported with `use_liger_loss`",
        f"trl 0.17.0 {INIT}",
        setting("use_liger_loss", False),
        ">=0.17,<0.18",
    ),
    BUILDING(
        "BB-TRL-029",
        negative_step,
        SIZES,
        "ValueError: maxlen must be non-negative",
        f"trl 0.17.0 {INIT}: the log's deque, before the sizes are looked at",
        size_fixes,
        ">=0.17,<0.18",
    ),
    BUILDING(
        "BB-TRL-022",
        at_least_two,
        (GENERATIONS,),
        "ValueError: GRPO requires at least 2 generations per prompt, after the model has been loaded",
        f"trl 0.17.0 {INIT}",
        size_fixes,
        ">=0.17,<0.18",
    ),
    BUILDING(
        "BB-TRL-021",
        whole_groups_per_micro_step,
        (MICRO, WORLD, GENERATIONS),
        _global_train_batch,
        f"trl 0.15.0 to 0.16.1 {INIT}",
        size_fixes,
        "<0.17",
    ),
    BUILDING(
        "BB-TRL-021",
        groups_of_a_possible_step,
        SIZES,
        f"ValueError: The effective train batch size {DIVISIBLE}, {_LATE}",
        f"trl 0.17.0 {INIT}",
        size_fixes,
        ">=0.17,<0.18",
    ),
    BUILDING(
        "BB-TRL-020",
        evaluation_groups_among_divisors,
        (EVAL_MICRO, WORLD, GENERATIONS),
        f"ValueError: The global eval batch size {DIVISIBLE}, {_LATE}",
        f"trl 0.15.0 to 0.17.0 {INIT}",
        evaluation_fixes,
        "<0.18",
    ),
    GENERATING(
        "BB-TRL-030",
        not_positive,
        SIZES,
        "the trainer is built; its data loader or transformers' loop fails",
        f"trl 0.15.0 to 0.17.0 {INIT} (no check)",
        size_fixes,
        "<0.18",
    ),
)
