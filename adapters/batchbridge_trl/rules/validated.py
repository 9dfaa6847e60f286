"""What `TrainingArguments` and `GRPOConfig` refuse, in the order of their post-init: the first row that speaks is the
exception that a user would see."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge_trl.rules.facts import (
    ALL,
    ARGUMENTS,
    BATCH,
    EVAL_GENERATIONS,
    EVAL_MICRO,
    GENERATIONS,
    MICRO,
    POST_INIT,
    SIZES,
    STEPS,
    Facts,
    Rule,
)
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.rules.groups import (
    DIVISIBLE,
    at_least_two,
    evaluation_groups_among_divisors,
    exclusive,
    groups_among_divisors,
    whole_evaluation_groups,
    whole_groups,
)
from batchbridge_trl.world import KEY as WORLD


def _zero_logging(facts: Facts) -> str | None:
    steps = facts.native["logging_strategy"] in ("steps", None)
    return "logging_steps = 0 with logging_strategy steps" if steps and facts.native["logging_steps"] == 0 else None


def _both_precisions(facts: Facts) -> str | None:
    return "fp16 and bf16 are both on" if facts.native["fp16"] and facts.native["bf16"] else None


def _share_of_warmup(facts: Facts) -> str | None:
    share = facts.native["warmup_ratio"]
    return None if 0 <= share <= 1 else f"warmup_ratio = {share}: must lie in [0, 1]"


def _negative_warmup(facts: Facts) -> str | None:
    warmup = facts.native["warmup_steps"]
    return f"warmup_steps = {warmup}: must be at least 0" if warmup < 0 else None


def _prefetch_without_workers(facts: Facts) -> str | None:
    workers, factor = facts.native["dataloader_num_workers"], facts.native["dataloader_prefetch_factor"]
    return (
        "dataloader_prefetch_factor needs dataloader_num_workers above 0"
        if workers == 0 and factor is not None
        else None
    )


def _greedy_schedule(facts: Facts) -> str | None:
    greedy = facts.native["lr_scheduler_type"] == "greedy"
    return "lr_scheduler_type = greedy came with transformers 5" if greedy else None


def _sequence_parallel(facts: Facts) -> str | None:
    config = facts.native["parallelism_config"]
    if not isinstance(config, Mapping):
        return None
    sizes = {key: config.get(key) for key in ("cp_size", "sp_size")}
    over = [f"{key} = {value}" for key, value in sizes.items() if isinstance(value, int) and value > 1]
    return f"parallelism_config: {' and '.join(over)}: GRPO cannot share one sequence among devices" if over else None


def _upload_without_log(facts: Facts) -> str | None:
    repository, logged = facts.native["log_completions_hub_repo"], facts.native["log_completions"]
    return "log_completions_hub_repo needs log_completions" if repository is not None and not logged else None


def _auto_find(facts: Facts) -> str | None:
    return "auto_find_batch_size shrinks batches, which breaks groups" if facts.native["auto_find_batch_size"] else None


def _zero_micro_batch(facts: Facts) -> str | None:
    return f"{MICRO} x {WORLD} = 0" if facts.sizes.micro * facts.sizes.world == 0 and not exclusive(facts) else None


def _zero_micro_step(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is not None or s.micro * s.world != 0:
        return None
    return f"{MICRO} x {WORLD} = 0 while {BATCH} is given"


def _rollout_of_whole_micro_batches(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is not None or not s.micro:
        return None
    if s.generation_batch % s.micro == 0:
        return None
    return f"{BATCH} = {s.generation_batch} (completions per rollout) is no multiple of {MICRO} {s.micro}"


def _rollout_of_whole_micro_steps(facts: Facts) -> str | None:
    s = facts.sizes
    per_micro_step = s.micro * s.world
    if s.generation_batch is None or s.steps_per_generation is not None or not per_micro_step:
        return None
    if s.generation_batch % per_micro_step == 0:
        return None
    return (
        f"{BATCH} = {s.generation_batch} (completions per rollout) is no multiple of {MICRO} {s.micro} x {WORLD} "
        f"{s.world} = {per_micro_step}"
    )


def _zero_generations(facts: Facts) -> str | None:
    s = facts.sizes
    return f"{GENERATIONS} = 0 (completions per prompt)" if s.generations == 0 and not exclusive(facts) else None


def _delta_with_liger(facts: Facts) -> str | None:
    delta = facts.native["delta"]
    return f"delta = {delta}: Liger's kernel has no second clipping" if facts.liger and delta is not None else None


def _correction_bounds(facts: Facts) -> str | None:
    native = facts.native
    cap = native["vllm_importance_sampling_cap"]
    low, high = native["vllm_importance_sampling_clip_min"], native["vllm_importance_sampling_clip_max"]
    high = high if cap is None else cap
    if low is None or high is None or low < high:
        return None
    return f"vllm_importance_sampling_clip_min = {low} must be below the upper bound {high}"


def _truncation_without_bounds(facts: Facts) -> str | None:
    native, mode = facts.native, facts.native["vllm_importance_sampling_mode"]
    bounds = [native[f"vllm_importance_sampling_{name}"] for name in ("cap", "clip_min", "clip_max")]
    if not native["vllm_importance_sampling_correction"] or mode not in ("token_truncate", "sequence_truncate"):
        return None
    return None if any(bound is not None for bound in bounds) else f"{mode} needs a lower or an upper bound"


VALIDATED: tuple[Rule, ...] = (
    Rule(
        "BB-TRL-010",
        "error",
        "config",
        _zero_logging,
        ("logging_steps",),
        native="ValueError: logging strategy steps requires non-zero --logging_steps",
        source=f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        fixes=setting("logging_steps", 1),
    ),
    Rule(
        "BB-TRL-011",
        "error",
        "config",
        _both_precisions,
        ("fp16", "bf16"),
        native="ValueError: At most one of fp16 and bf16 can be True, but not both",
        source=f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        fixes=setting("fp16", False),
    ),
    Rule(
        "BB-TRL-027",
        "error",
        "config",
        _share_of_warmup,
        ("warmup_ratio",),
        native="ValueError: warmup_ratio must lie in range [0,1]",
        source="transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
        fixes=setting("warmup_ratio", 0.1),
        versions="<0.29",
    ),
    Rule(
        "BB-TRL-012",
        "error",
        "config",
        _negative_warmup,
        ("warmup_steps",),
        native="ValueError: Expected value warmup_steps >= 0",
        source="transformers 5.23.0 TrainingArguments._validate_args",
        fixes=setting("warmup_steps", 0),
        versions=">=0.29",
    ),
    Rule(
        "BB-TRL-012",
        "error",
        "config",
        _negative_warmup,
        ("warmup_steps",),
        native="ValueError: warmup_steps must be of type int and must be 0 or a positive integer.",
        source="transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
        fixes=setting("warmup_steps", 0),
        versions="<0.29",
    ),
    Rule(
        "BB-TRL-013",
        "error",
        "config",
        _prefetch_without_workers,
        ("dataloader_prefetch_factor", "dataloader_num_workers"),
        native="ValueError: --dataloader_prefetch_factor can only be set when --dataloader_num_workers > 0",
        source=f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        fixes=setting("dataloader_prefetch_factor", None),
    ),
    Rule(
        "BB-TRL-028",
        "error",
        "config",
        _greedy_schedule,
        ("lr_scheduler_type",),
        native="ValueError: 'greedy' is not a valid SchedulerType",
        source="transformers 4.57.6 SchedulerType",
        fixes=setting("lr_scheduler_type", "linear"),
        versions="<0.29",
    ),
    Rule(
        "BB-TRL-014",
        "error",
        "config",
        _sequence_parallel,
        ("parallelism_config",),
        native="ValueError: GRPOTrainer does not support sequence-dim parallelism",
        source=f"trl 1.4.0 to 1.16.0 {POST_INIT}",
        fixes=setting("parallelism_config", None),
        versions=">=1.4",
    ),
    Rule(
        "BB-TRL-015",
        "error",
        "config",
        _upload_without_log,
        ("log_completions_hub_repo", "log_completions"),
        native="ValueError: log_completions_hub_repo is set, but log_completions is False",
        source=f"trl 0.28.0 to 1.16.0 {POST_INIT}",
        fixes=setting("log_completions", True),
        versions=">=0.28",
    ),
    Rule(
        "BB-TRL-016",
        "error",
        "config",
        _auto_find,
        ("auto_find_batch_size",),
        native="ValueError: auto_find_batch_size is not supported by GRPO",
        source=f"trl 1.9.0 to 1.16.0 {POST_INIT}",
        fixes=setting("auto_find_batch_size", False),
        versions=">=1.9",
    ),
    Rule(
        "BB-TRL-017",
        "error",
        "config",
        exclusive,
        (BATCH, STEPS),
        native="ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both configured",
        source=f"{ALL} {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-018",
        "error",
        "config",
        _zero_micro_batch,
        (MICRO, WORLD),
        native="ZeroDivisionError: integer modulo by zero",
        source=f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-018",
        "error",
        "config",
        _zero_micro_step,
        (MICRO, WORLD, BATCH),
        native="ZeroDivisionError: integer modulo by zero",
        source=f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-019",
        "error",
        "config",
        _rollout_of_whole_micro_batches,
        (BATCH, MICRO),
        native="ValueError: generation_batch_size must be divisible by the global batch size",
        source=f"trl 0.18.0 to 0.19.0 {POST_INIT}: gbs % mb * processes, which tests gbs % mb",
        fixes=size_fixes,
        versions=">=0.18,<0.19.1",
    ),
    Rule(
        "BB-TRL-019",
        "error",
        "config",
        _rollout_of_whole_micro_steps,
        (BATCH, MICRO, WORLD),
        native="ValueError: generation_batch_size must be divisible by the global batch size",
        source=f"trl 0.19.1 to 1.16.0 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.19.1",
    ),
    Rule(
        "BB-TRL-022",
        "error",
        "config",
        at_least_two,
        (GENERATIONS,),
        native="ValueError: GRPO requires at least 2 generations per prompt",
        source=f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "config",
        groups_among_divisors,
        SIZES,
        native=f"ValueError: The effective train batch size {DIVISIBLE}",
        source=f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "config",
        evaluation_groups_among_divisors,
        (EVAL_MICRO, WORLD, GENERATIONS),
        native=f"ValueError: The global eval batch size {DIVISIBLE}",
        source=f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        fixes=evaluation_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "config",
        whole_evaluation_groups,
        (EVAL_MICRO, WORLD, EVAL_GENERATIONS, GENERATIONS),
        native=(
            "ValueError: The global eval batch size must be divisible by the number of generations used for evaluation"
        ),
        source=f"trl 0.22.0 to 1.16.0 {POST_INIT}; that of 0.26.0 does not look at num_generations_eval",
        fixes=evaluation_fixes,
        versions=">=0.22",
    ),
    Rule(
        "BB-TRL-024",
        "error",
        "config",
        _zero_generations,
        (GENERATIONS,),
        native="ZeroDivisionError: integer modulo by zero",
        source=f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "config",
        whole_groups,
        SIZES,
        native="ValueError: generation_batch_size must be divisible by num_generations",
        source=f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-022",
        "error",
        "config",
        at_least_two,
        (GENERATIONS,),
        native="ValueError: GRPO requires at least 2 generations per prompt",
        source=f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-026",
        "error",
        "config",
        _delta_with_liger,
        ("delta", "use_liger_loss", "use_liger_kernel"),
        native="ValueError: Liger loss does not support two-sided GRPO loss yet",
        source=f"trl 0.18.0 to 1.3.0 {POST_INIT}",
        fixes=setting("delta", None),
        versions=">=0.18,<1.4",
    ),
    Rule(
        "BB-TRL-023",
        "error",
        "config",
        _correction_bounds,
        ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"),
        native="ValueError: vllm_importance_sampling_clip_min must be less than vllm_importance_sampling_clip_max",
        source=f"trl 1.6.0 to 1.16.0 {POST_INIT}",
        fixes=setting("vllm_importance_sampling_clip_min", None),
        versions=">=1.6",
    ),
    Rule(
        "BB-TRL-025",
        "error",
        "config",
        _truncation_without_bounds,
        ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"),
        native="ValueError: At least one of vllm_importance_sampling_clip_min or ..._clip_max must be set",
        source=f"trl 1.6.0 to 1.16.0 {POST_INIT}",
        fixes=setting("vllm_importance_sampling_clip_max", 3.0),
        versions=">=1.6",
    ),
)
