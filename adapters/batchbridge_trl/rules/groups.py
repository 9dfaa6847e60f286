"""Whole groups, in rollouts and evaluations: what GRPOConfig's post-init asks for since 0.18, and GRPOTrainer did
before, once the model had been loaded."""

from __future__ import annotations

from batchbridge_trl.rules.facts import ACCUMULATION, BATCH, EVAL_MICRO, GENERATIONS, MICRO, STEPS, Facts
from batchbridge_trl.settings import holds
from batchbridge_trl.world import KEY as WORLD

DIVISIBLE = "must be evenly divisible by the number of generations per prompt"


def exclusive(facts: Facts) -> str | None:
    """The two settings that say the rollout's size, both given."""
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is None:
        return None
    return (
        f"{BATCH} = {s.generation_batch} and {STEPS} = {s.steps_per_generation} are both given; one follows from "
        "the other"
    )


def at_least_two(facts: Facts) -> str | None:
    """A group of fewer than 2 completions, which has no deviation."""
    count = facts.sizes.generations
    zero_divides = count == 0 and holds(">=0.20", facts.version)
    return f"{GENERATIONS} = {count}: a group needs at least 2 completions" if count < 2 and not zero_divides else None


def whole_groups(facts: Facts) -> str | None:
    """Rollouts that do not hold whole groups, since 0.20."""
    s = facts.sizes
    if s.generation_batch is not None and s.steps_per_generation is not None:
        return None
    if s.generations == 0 or facts.generation_batch % s.generations == 0:
        return None
    return _broken_groups(facts)


def groups_among_divisors(facts: Facts) -> str | None:
    """Rollouts that do not hold whole groups, as 0.17 to 0.19 look for them."""
    if facts.sizes.generations < 2 or exclusive(facts):
        return None
    s, completions = facts.sizes, facts.generation_batch
    if s.generation_batch is not None and s.micro * s.world:
        completions = s.generation_batch
    return None if among_divisors(s.generations, completions) else _broken_groups(facts)


def whole_evaluation_groups(facts: Facts) -> str | None:
    """Evaluation batches that do not hold whole groups, since 0.20."""
    if not facts.evaluates or (generations := facts.evaluation_generations) == 0:
        return None
    completions = facts.native[EVAL_MICRO] * facts.sizes.world
    if completions % generations == 0:
        return None
    return _broken_evaluation(facts, completions, generations)


def evaluation_groups_among_divisors(facts: Facts) -> str | None:
    """Evaluation batches that do not hold whole groups, as the versions before 0.20 look for them."""
    if not facts.evaluates:
        return None
    completions = facts.native[EVAL_MICRO] * facts.sizes.world
    if among_divisors(facts.sizes.generations, completions):
        return None
    return _broken_evaluation(facts, completions, facts.sizes.generations)


def among_divisors(generations: int, completions: int) -> bool:
    """Whether `generations` is among the divisors of `completions` from 2 on, as the versions before 0.20 list them."""
    return 2 <= generations <= completions and completions % generations == 0


def _broken_groups(facts: Facts) -> str:
    s = facts.sizes
    if s.generation_batch is not None:
        product = f"{BATCH} = {s.generation_batch}"
    else:
        steps = s.accumulation if s.steps_per_generation is None else s.steps_per_generation
        named = ACCUMULATION if s.steps_per_generation is None else STEPS
        product = f"{MICRO} {s.micro} x {WORLD} {s.world} x {named} {steps} = {facts.generation_batch}"
    return (
        f"{product} (completions per rollout) is no multiple of {GENERATIONS} = {s.generations} (completions per "
        "prompt)"
    )


def _broken_evaluation(facts: Facts, completions: int, generations: int) -> str:
    return (
        f"evaluation: {EVAL_MICRO} {facts.native[EVAL_MICRO]} x {WORLD} {facts.sizes.world} = {completions} "
        "completions "
        f"are no multiple of {generations} completions per prompt"
    )
