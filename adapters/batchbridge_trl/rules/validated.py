"""Rules of `TrainingArguments` and `GRPOConfig`, in the order of their post-init: the first row that speaks is the
exception that a user would see."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit.rule_table import IN_CONFIG, Rules, says
from batchbridge_trl.meaning import CAP, CLIP_MAX, CLIP_MIN, MODE, correction_bounds
from batchbridge_trl.rules import printed
from batchbridge_trl.rules.facts import (
    ALL,
    ARGUMENTS,
    ARGUMENTS_CHECKED,
    EVAL_GENERATIONS,
    EVAL_MICRO,
    POST_INIT,
    SIZES,
    TrlFacts,
)
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.settings import holds
from batchbridge_trl.settings_transformers import ACCELERATOR_CONFIG
from batchbridge_trl.sizes import BATCH, GENERATIONS, MICRO, STEPS
from batchbridge_trl.world import KEY as WORLD

DIVISIBLE = "must be evenly divisible by the number of generations per prompt"
AT_LEAST_TWO = "ValueError: GRPO requires at least 2 generations per prompt"

RULES = Rules[TrlFacts]()


@RULES.add(IN_CONFIG, "BB-TRL-011", "fp16", "bf16", fixes=setting("fp16", False))
@says("ValueError: At most one of fp16 and bf16 can be True, but not both", ARGUMENTS_CHECKED)
def _both_precisions(facts: TrlFacts) -> str | None:
    return "fp16 and bf16 are both on" if facts.native["fp16"] and facts.native["bf16"] else None


@RULES.add(IN_CONFIG, "BB-TRL-086", "lr_scheduler_type", "eval_strategy", fixes=setting("lr_scheduler_type", "linear"))
@says("ValueError: lr_scheduler_type reduce_lr_on_plateau requires an eval strategy", ARGUMENTS_CHECKED)
def _schedule_by_evaluations(facts: TrlFacts) -> str | None:
    schedule = facts.native["lr_scheduler_type"]
    unseen = schedule in ("reduce_lr_on_plateau", "greedy") and not facts.evaluates
    return f"lr_scheduler_type {schedule} needs evaluations, and eval_strategy is no" if unseen else None


@RULES.add(IN_CONFIG, "BB-TRL-027", "warmup_ratio", fixes=setting("warmup_ratio", 0.1))
@says(
    "ValueError: warmup_ratio must lie in range [0,1]",
    "transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
    "<0.29",
)
def _share_of_warmup(facts: TrlFacts) -> str | None:
    share = facts.native["warmup_ratio"]
    return None if 0 <= share <= 1 else f"warmup_ratio = {share}: must lie in [0, 1]"


@RULES.add(IN_CONFIG, "BB-TRL-012", "warmup_steps", fixes=setting("warmup_steps", 0))
@says(
    "ValueError: warmup_steps must be of type int and must be 0 or a positive integer.",
    "transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
    "<0.29",
)
@RULES.add(IN_CONFIG, "BB-TRL-012", "warmup_steps", fixes=setting("warmup_steps", 0))
@says("ValueError: Expected value warmup_steps >= 0", "transformers 5.23.0 TrainingArguments._validate_args", ">=0.29")
def _negative_warmup(facts: TrlFacts) -> str | None:
    warmup = facts.native["warmup_steps"]
    return f"warmup_steps = {warmup}: must be at least 0" if warmup < 0 else None


@RULES.add(IN_CONFIG, "BB-TRL-028", "lr_scheduler_type", fixes=setting("lr_scheduler_type", "linear"))
@says("ValueError: 'greedy' is not a valid SchedulerType", "transformers 4.57.6 SchedulerType", "<0.29")
def _greedy_schedule(facts: TrlFacts) -> str | None:
    greedy = facts.native["lr_scheduler_type"] == "greedy"
    return "lr_scheduler_type = greedy came with transformers 5" if greedy else None


@RULES.add(IN_CONFIG, "BB-TRL-087", "accelerator_config", fixes=setting("accelerator_config", None))
@says("TypeError: AcceleratorConfig.__init__() got an unexpected keyword argument", f"{ARGUMENTS} AcceleratorConfig")
def _unknown_to_accelerate(facts: TrlFacts) -> str | None:
    config = facts.native["accelerator_config"]
    unknown = [str(key) for key in config if key not in ACCELERATOR_CONFIG] if isinstance(config, Mapping) else []
    return f"accelerator_config has no {', '.join(unknown)}" if unknown else None


@RULES.add(IN_CONFIG, "BB-TRL-014", "parallelism_config", fixes=setting("parallelism_config", None))
@says("AttributeError: 'dict' object has no attribute 'cp_enabled'", f"trl 1.4.0 to 1.16.0 {POST_INIT}", ">=1.4")
def _parallelism(facts: TrlFacts) -> str | None:
    if facts.from_object or not isinstance(facts.native["parallelism_config"], Mapping):
        return None
    return (
        "parallelism_config: a mapping is not a ParallelismConfig, and GRPO takes none with cp_size or sp_size above 1"
    )


@RULES.add(IN_CONFIG, "BB-TRL-016", "auto_find_batch_size", fixes=setting("auto_find_batch_size", False))
@says("ValueError: auto_find_batch_size is not supported by GRPO", f"trl 1.9.0 to 1.16.0 {POST_INIT}", ">=1.9")
def _auto_find(facts: TrlFacts) -> str | None:
    return "auto_find_batch_size shrinks batches, which breaks groups" if facts.native["auto_find_batch_size"] else None


@RULES.add(IN_CONFIG, "BB-TRL-017", BATCH, STEPS, fixes=size_fixes, text=printed.TWO_ROLLOUT_SIZES)
@says(
    "ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both configured",
    f"{ALL} {POST_INIT}",
    ">=0.18",
)
def _exclusive(facts: TrlFacts) -> str | None:
    batch, steps = facts.sizes.generation_batch, facts.sizes.steps_per_generation
    said = f"{BATCH} = {batch} and {STEPS} = {steps} are both given; one follows from the other"
    return said if facts.sizes.says_both else None


@RULES.add(IN_CONFIG, "BB-TRL-018", MICRO, WORLD, fixes=size_fixes)
@says("ZeroDivisionError: integer modulo by zero", f"trl 0.18.0 to 0.19.1 {POST_INIT}", ">=0.18,<0.20")
def _zero_micro_batch(facts: TrlFacts) -> str | None:
    return f"{MICRO} x {WORLD} = 0" if facts.sizes.micro_step == 0 and not facts.sizes.says_both else None


@RULES.add(IN_CONFIG, "BB-TRL-018", MICRO, WORLD, BATCH, fixes=size_fixes)
@says("ZeroDivisionError: integer modulo by zero", f"trl 0.20.0 to 1.16.0 {POST_INIT}", ">=0.20")
def _zero_micro_step(facts: TrlFacts) -> str | None:
    divides = facts.sizes.batch_alone is not None
    return f"{MICRO} x {WORLD} = 0 while {BATCH} is given" if divides and facts.sizes.micro_step == 0 else None


@RULES.add(IN_CONFIG, "BB-TRL-019", BATCH, MICRO, fixes=size_fixes, text=printed.GENERATION_MICRO_STEPS)
@says(
    "ValueError: generation_batch_size must be divisible by the global batch size",
    f"trl 0.18.0 to 0.19.0 {POST_INIT}: gbs % mb * processes, which tests gbs % mb",
    ">=0.18,<0.19.1",
)
def _rollout_of_whole_micro_batches(facts: TrlFacts) -> str | None:
    batch, micro = facts.sizes.batch_alone, facts.sizes.micro
    if batch is None or not micro or batch % micro == 0:
        return None
    return f"{BATCH} = {batch} (completions per rollout) is not a multiple of {MICRO} {micro}"


@RULES.add(IN_CONFIG, "BB-TRL-019", BATCH, MICRO, WORLD, fixes=size_fixes, text=printed.GENERATION_MICRO_STEPS)
@says(
    "ValueError: generation_batch_size must be divisible by the global batch size",
    f"trl 0.19.1 to 1.16.0 {POST_INIT}",
    ">=0.19.1",
)
def _rollout_of_whole_micro_steps(facts: TrlFacts) -> str | None:
    s, batch = facts.sizes, facts.sizes.batch_alone
    if batch is None or not s.micro_step or batch % s.micro_step == 0:
        return None
    product = f"{MICRO} {s.micro} x {WORLD} {s.world} = {s.micro_step}"
    return f"{BATCH} = {batch} (completions per rollout) is not a multiple of {product}"


def at_least_two(facts: TrlFacts) -> str | None:
    """A group of fewer than 2 completions, which has no deviation."""
    count = facts.sizes.generations
    zero_divides = count == 0 and holds(">=0.20", facts.version)
    return f"{GENERATIONS} = {count}: a group needs at least 2 completions" if count < 2 and not zero_divides else None


# Before 0.20 it is looked at before the groups, and then behind them.
RULES.add(IN_CONFIG, "BB-TRL-022", GENERATIONS, fixes=size_fixes, text=printed.TWO_GENERATIONS)(
    says(AT_LEAST_TWO, f"trl 0.18.0 to 0.19.1 {POST_INIT}", ">=0.18,<0.20")(at_least_two)
)


@RULES.add(IN_CONFIG, "BB-TRL-021", *SIZES, fixes=size_fixes, text=printed.EFFECTIVE_BATCH)
@says(f"ValueError: The effective train batch size {DIVISIBLE}", f"trl 0.18.0 to 0.19.1 {POST_INIT}", ">=0.18,<0.20")
def groups_among_divisors(facts: TrlFacts) -> str | None:
    """Rollouts that do not hold whole groups, as 0.17 to 0.19 look for them."""
    s = facts.sizes
    if s.generations < 2 or s.says_both or among_divisors(s.generations, s.completions):
        return None
    return _broken_groups(facts)


def among_divisors(generations: int, completions: int) -> bool:
    """Whether `generations` is among the divisors of `completions` from 2 on, as the versions before 0.20 list them."""
    return 2 <= generations <= completions and completions % generations == 0


def _broken_groups(facts: TrlFacts) -> str:
    s = facts.sizes
    product = f"{s.product(*s.steps)} = {s.completions}" if s.generation_batch is None else f"{BATCH} = {s.completions}"
    said = f"{product} (completions per rollout) is not a multiple of {GENERATIONS} = {s.generations}"
    return f"{said} (completions per prompt)"


@RULES.add(
    IN_CONFIG, "BB-TRL-020", EVAL_MICRO, WORLD, GENERATIONS, fixes=evaluation_fixes, text=printed.EVALUATION_BATCH
)
@says(f"ValueError: The global eval batch size {DIVISIBLE}", f"trl 0.18.0 to 0.19.1 {POST_INIT}", ">=0.18,<0.20")
def evaluation_groups_among_divisors(facts: TrlFacts) -> str | None:
    """Evaluation batches that do not hold whole groups, as the versions before 0.20 look for them."""
    generations, completions = facts.sizes.generations, facts.evaluation_completions
    if not facts.evaluates or among_divisors(generations, completions):
        return None
    return _broken_evaluation(facts, generations)


@RULES.add(
    IN_CONFIG,
    "BB-TRL-020",
    EVAL_MICRO,
    WORLD,
    EVAL_GENERATIONS,
    GENERATIONS,
    fixes=evaluation_fixes,
    text=printed.EVALUATION_BATCH,
)
@says(
    "ValueError: The global eval batch size must be divisible by the number of generations used for evaluation",
    f"trl 0.22.0 to 1.16.0 {POST_INIT}; that of 0.26.0 does not look at num_generations_eval",
    ">=0.22",
)
def whole_evaluation_groups(facts: TrlFacts) -> str | None:
    """Evaluation batches that do not hold whole groups, since 0.20."""
    generations = facts.evaluation_generations
    if not facts.evaluates or generations == 0 or facts.evaluation_completions % generations == 0:
        return None
    return _broken_evaluation(facts, generations)


def _broken_evaluation(facts: TrlFacts, generations: int) -> str:
    product = f"{EVAL_MICRO} {facts.native[EVAL_MICRO]} x {WORLD} {facts.sizes.world} = {facts.evaluation_completions}"
    return f"evaluation: {product} completions are not a multiple of {generations} completions per prompt"


@RULES.add(IN_CONFIG, "BB-TRL-024", GENERATIONS, fixes=size_fixes)
@says("ZeroDivisionError: integer modulo by zero", f"trl 0.20.0 to 1.16.0 {POST_INIT}", ">=0.20")
def _zero_generations(facts: TrlFacts) -> str | None:
    zero = facts.sizes.generations == 0 and not facts.sizes.says_both
    return f"{GENERATIONS} = 0 (completions per prompt)" if zero else None


@RULES.add(IN_CONFIG, "BB-TRL-021", *SIZES, fixes=size_fixes, text=printed.GENERATION_BATCH)
@says(
    "ValueError: generation_batch_size must be divisible by num_generations",
    f"trl 0.20.0 to 1.16.0 {POST_INIT}",
    ">=0.20",
)
def _whole_groups(facts: TrlFacts) -> str | None:
    s = facts.sizes
    return None if s.says_both or s.generations == 0 or s.completions % s.generations == 0 else _broken_groups(facts)


RULES.add(IN_CONFIG, "BB-TRL-022", GENERATIONS, fixes=size_fixes, text=printed.TWO_GENERATIONS)(
    says(AT_LEAST_TWO, f"trl 0.20.0 to 1.16.0 {POST_INIT}", ">=0.20")(at_least_two)
)


@RULES.add(IN_CONFIG, "BB-TRL-026", "delta", "use_liger_loss", "use_liger_kernel", fixes=setting("delta", None))
@says(
    "ValueError: Liger loss does not support two-sided GRPO loss yet", f"trl 0.18.0 to 1.3.0 {POST_INIT}", ">=0.18,<1.4"
)
def _delta_with_liger(facts: TrlFacts) -> str | None:
    delta = facts.native["delta"]
    return f"delta = {delta}: Liger's kernel has no second clipping" if facts.liger and delta is not None else None


@RULES.add(IN_CONFIG, "BB-TRL-023", CLIP_MIN, CLIP_MAX, CAP, fixes=setting(CLIP_MIN, None))
@says(f"ValueError: {CLIP_MIN} must be less than {CLIP_MAX}", f"trl 1.6.0 to 1.16.0 {POST_INIT}", ">=1.6")
def _correction_bounds(facts: TrlFacts) -> str | None:
    low, high = correction_bounds(facts.native)
    crossed = low is not None and high is not None and low >= high
    return f"{CLIP_MIN} = {low} must be below the upper bound {high}" if crossed else None


@RULES.add(IN_CONFIG, "BB-TRL-025", MODE, CLIP_MIN, CLIP_MAX, fixes=setting(CLIP_MAX, 3.0))
@says(
    f"ValueError: At least one of {CLIP_MIN} or ..._clip_max must be set",
    f"trl 1.6.0 to 1.16.0 {POST_INIT}",
    ">=1.6",
)
def _truncation_without_bounds(facts: TrlFacts) -> str | None:
    mode, bounds = facts.native[MODE], correction_bounds(facts.native)
    truncates = facts.native["vllm_importance_sampling_correction"] and mode in ("token_truncate", "sequence_truncate")
    return f"{mode} needs a lower or an upper bound" if truncates and bounds == (None, None) else None
