"""Refusals of TRL before 0.18: groups, evaluations and Liger's loss, once the model had been loaded."""

from __future__ import annotations

from batchbridge.kit.rule_table import BUILDING, GENERATING, Rules, says
from batchbridge_trl.rules import printed
from batchbridge_trl.rules.facts import EVAL_MICRO, INIT, SIZES, TrlFacts
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.rules.later import not_positive
from batchbridge_trl.rules.validated import (
    AT_LEAST_TWO,
    DIVISIBLE,
    among_divisors,
    at_least_two,
    evaluation_groups_among_divisors,
    groups_among_divisors,
)
from batchbridge_trl.sizes import GENERATIONS, MICRO
from batchbridge_trl.world import KEY as WORLD

_LATE = "after the model has been loaded"
ROWS = Rules[TrlFacts]()


@ROWS.add(BUILDING, "BB-TRL-041", "use_liger_loss", "loss_type", fixes=setting("use_liger_loss", False))
@says("ValueError: The provided loss type is not supported with `use_liger_loss`", f"trl 0.17.0 {INIT}", ">=0.17,<0.18")
def _liger_loss_type(facts: TrlFacts) -> str | None:
    name = facts.native["loss_type"]
    return f"loss_type = {name}: Liger's kernel computes bnpo only" if facts.liger and name != "bnpo" else None


@ROWS.add(BUILDING, "BB-TRL-029", *SIZES, fixes=size_fixes)
@says(
    "ValueError: maxlen must be non-negative",
    f"trl 0.17.0 {INIT}: the log's deque, before the sizes are looked at",
    ">=0.17,<0.18",
)
def _negative_step(facts: TrlFacts) -> str | None:
    """A step of fewer than 0 completions, as 0.17 comes upon it: its log keeps so many texts."""
    s = facts.sizes
    return f"{s.product(*s.steps)} = {s.completions}: no step has so many completions" if s.completions < 0 else None


ROWS.add(BUILDING, "BB-TRL-022", GENERATIONS, fixes=size_fixes, text=printed.TWO_GENERATIONS)(
    says(f"{AT_LEAST_TWO}, {_LATE}", f"trl 0.17.0 {INIT}", ">=0.17,<0.18")(at_least_two)
)


def _global_train_batch(facts: TrlFacts) -> str:
    s = facts.sizes
    return (
        f"ValueError: The global train batch size ({s.world} x {s.micro}) must be evenly divisible by the number of "
        f"generations per prompt ({s.generations}), from {INIT}, {_LATE}"
    )


def _whole_groups_per_micro_step(facts: TrlFacts) -> str | None:
    """Micro-batches, over all devices, that do not hold whole groups: before 0.17."""
    s = facts.sizes
    if among_divisors(s.generations, s.micro_step):
        return None
    return (
        f"{MICRO} {s.micro} x {WORLD} {s.world} = {s.micro_step} (completions per micro-batch, over all devices) "
        f"is not a multiple of {GENERATIONS} = {s.generations} (completions per prompt, at least 2); accumulation does "
        "not count before trl 0.17"
    )


ROWS.append(
    BUILDING(
        "BB-TRL-021",
        _whole_groups_per_micro_step,
        (MICRO, WORLD, GENERATIONS),
        _global_train_batch,
        f"trl 0.15.0 to 0.16.1 {INIT}",
        size_fixes,
        "<0.17",
        text=printed.GLOBAL_BATCH,
    )
)


@ROWS.add(BUILDING, "BB-TRL-021", *SIZES, fixes=size_fixes, text=printed.EFFECTIVE_BATCH)
@says(f"ValueError: The effective train batch size {DIVISIBLE}, {_LATE}", f"trl 0.17.0 {INIT}", ">=0.17,<0.18")
def _groups_of_a_possible_step(facts: TrlFacts) -> str | None:
    """`groups_among_divisors`, where `_negative_step` has not been first."""
    return None if _negative_step(facts) else groups_among_divisors(facts)


ROWS.add(BUILDING, "BB-TRL-020", EVAL_MICRO, WORLD, GENERATIONS, fixes=evaluation_fixes, text=printed.EVALUATION_BATCH)(
    says(f"ValueError: The global eval batch size {DIVISIBLE}, {_LATE}", f"trl 0.15.0 to 0.17.0 {INIT}", "<0.18")(
        evaluation_groups_among_divisors
    )
)
ROWS.add(GENERATING, "BB-TRL-030", *SIZES, fixes=size_fixes)(
    says(
        "the trainer is built; its data loader or transformers' loop fails",
        f"trl 0.15.0 to 0.17.0 {INIT} (no check)",
        "<0.18",
    )(not_positive)
)
