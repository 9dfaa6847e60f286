"""What `TrainingArguments` and `GRPOConfig` refuse, in the order of their post-init: the first row that speaks is the
exception that a user would see."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit.rule_table import IN_CONFIG
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
    IN_CONFIG(
        "BB-TRL-010",
        _zero_logging,
        ("logging_steps",),
        "ValueError: logging strategy steps requires non-zero --logging_steps",
        f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        setting("logging_steps", 1),
    ),
    IN_CONFIG(
        "BB-TRL-011",
        _both_precisions,
        ("fp16", "bf16"),
        "ValueError: At most one of fp16 and bf16 can be True, but not both",
        f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        setting("fp16", False),
    ),
    IN_CONFIG(
        "BB-TRL-027",
        _share_of_warmup,
        ("warmup_ratio",),
        "ValueError: warmup_ratio must lie in range [0,1]",
        "transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
        setting("warmup_ratio", 0.1),
        "<0.29",
    ),
    IN_CONFIG(
        "BB-TRL-012",
        _negative_warmup,
        ("warmup_steps",),
        "ValueError: Expected value warmup_steps >= 0",
        "transformers 5.23.0 TrainingArguments._validate_args",
        setting("warmup_steps", 0),
        ">=0.29",
    ),
    IN_CONFIG(
        "BB-TRL-012",
        _negative_warmup,
        ("warmup_steps",),
        "ValueError: warmup_steps must be of type int and must be 0 or a positive integer.",
        "transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
        setting("warmup_steps", 0),
        "<0.29",
    ),
    IN_CONFIG(
        "BB-TRL-013",
        _prefetch_without_workers,
        ("dataloader_prefetch_factor", "dataloader_num_workers"),
        "ValueError: --dataloader_prefetch_factor can only be set when --dataloader_num_workers > 0",
        f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        setting("dataloader_prefetch_factor", None),
    ),
    IN_CONFIG(
        "BB-TRL-028",
        _greedy_schedule,
        ("lr_scheduler_type",),
        "ValueError: 'greedy' is not a valid SchedulerType",
        "transformers 4.57.6 SchedulerType",
        setting("lr_scheduler_type", "linear"),
        "<0.29",
    ),
    IN_CONFIG(
        "BB-TRL-014",
        _sequence_parallel,
        ("parallelism_config",),
        "ValueError: GRPOTrainer does not support sequence-dim parallelism",
        f"trl 1.4.0 to 1.16.0 {POST_INIT}",
        setting("parallelism_config", None),
        ">=1.4",
    ),
    IN_CONFIG(
        "BB-TRL-015",
        _upload_without_log,
        ("log_completions_hub_repo", "log_completions"),
        "ValueError: log_completions_hub_repo is set, but log_completions is False",
        f"trl 0.28.0 to 1.16.0 {POST_INIT}",
        setting("log_completions", True),
        ">=0.28",
    ),
    IN_CONFIG(
        "BB-TRL-016",
        _auto_find,
        ("auto_find_batch_size",),
        "ValueError: auto_find_batch_size is not supported by GRPO",
        f"trl 1.9.0 to 1.16.0 {POST_INIT}",
        setting("auto_find_batch_size", False),
        ">=1.9",
    ),
    IN_CONFIG(
        "BB-TRL-017",
        exclusive,
        (BATCH, STEPS),
        "ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both configured",
        f"{ALL} {POST_INIT}",
        size_fixes,
        ">=0.18",
    ),
    IN_CONFIG(
        "BB-TRL-018",
        _zero_micro_batch,
        (MICRO, WORLD),
        "ZeroDivisionError: integer modulo by zero",
        f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        size_fixes,
        ">=0.18,<0.20",
    ),
    IN_CONFIG(
        "BB-TRL-018",
        _zero_micro_step,
        (MICRO, WORLD, BATCH),
        "ZeroDivisionError: integer modulo by zero",
        f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        size_fixes,
        ">=0.20",
    ),
    IN_CONFIG(
        "BB-TRL-019",
        _rollout_of_whole_micro_batches,
        (BATCH, MICRO),
        "ValueError: generation_batch_size must be divisible by the global batch size",
        f"trl 0.18.0 to 0.19.0 {POST_INIT}: gbs % mb * processes, which tests gbs % mb",
        size_fixes,
        ">=0.18,<0.19.1",
    ),
    IN_CONFIG(
        "BB-TRL-019",
        _rollout_of_whole_micro_steps,
        (BATCH, MICRO, WORLD),
        "ValueError: generation_batch_size must be divisible by the global batch size",
        f"trl 0.19.1 to 1.16.0 {POST_INIT}",
        size_fixes,
        ">=0.19.1",
    ),
    IN_CONFIG(
        "BB-TRL-022",
        at_least_two,
        (GENERATIONS,),
        "ValueError: GRPO requires at least 2 generations per prompt",
        f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        size_fixes,
        ">=0.18,<0.20",
    ),
    IN_CONFIG(
        "BB-TRL-021",
        groups_among_divisors,
        SIZES,
        f"ValueError: The effective train batch size {DIVISIBLE}",
        f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        size_fixes,
        ">=0.18,<0.20",
    ),
    IN_CONFIG(
        "BB-TRL-020",
        evaluation_groups_among_divisors,
        (EVAL_MICRO, WORLD, GENERATIONS),
        f"ValueError: The global eval batch size {DIVISIBLE}",
        f"trl 0.18.0 to 0.19.1 {POST_INIT}",
        evaluation_fixes,
        ">=0.18,<0.20",
    ),
    IN_CONFIG(
        "BB-TRL-020",
        whole_evaluation_groups,
        (EVAL_MICRO, WORLD, EVAL_GENERATIONS, GENERATIONS),
        "ValueError: The global eval batch size must be divisible by the number of generations used for evaluation",
        f"trl 0.22.0 to 1.16.0 {POST_INIT}; that of 0.26.0 does not look at num_generations_eval",
        evaluation_fixes,
        ">=0.22",
    ),
    IN_CONFIG(
        "BB-TRL-024",
        _zero_generations,
        (GENERATIONS,),
        "ZeroDivisionError: integer modulo by zero",
        f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        size_fixes,
        ">=0.20",
    ),
    IN_CONFIG(
        "BB-TRL-021",
        whole_groups,
        SIZES,
        "ValueError: generation_batch_size must be divisible by num_generations",
        f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        size_fixes,
        ">=0.20",
    ),
    IN_CONFIG(
        "BB-TRL-022",
        at_least_two,
        (GENERATIONS,),
        "ValueError: GRPO requires at least 2 generations per prompt",
        f"trl 0.20.0 to 1.16.0 {POST_INIT}",
        size_fixes,
        ">=0.20",
    ),
    IN_CONFIG(
        "BB-TRL-026",
        _delta_with_liger,
        ("delta", "use_liger_loss", "use_liger_kernel"),
        "ValueError: Liger loss does not support two-sided GRPO loss yet",
        f"trl 0.18.0 to 1.3.0 {POST_INIT}",
        setting("delta", None),
        ">=0.18,<1.4",
    ),
    IN_CONFIG(
        "BB-TRL-023",
        _correction_bounds,
        ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"),
        "ValueError: vllm_importance_sampling_clip_min must be less than vllm_importance_sampling_clip_max",
        f"trl 1.6.0 to 1.16.0 {POST_INIT}",
        setting("vllm_importance_sampling_clip_min", None),
        ">=1.6",
    ),
    IN_CONFIG(
        "BB-TRL-025",
        _truncation_without_bounds,
        ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"),
        "ValueError: At least one of vllm_importance_sampling_clip_min or ..._clip_max must be set",
        f"trl 1.6.0 to 1.16.0 {POST_INIT}",
        setting("vllm_importance_sampling_clip_max", 3.0),
        ">=1.6",
    ),
)
