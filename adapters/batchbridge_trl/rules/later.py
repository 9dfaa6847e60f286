"""What TRL notices later: while it builds the trainer, at the first rollout, or at the first loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchbridge.kit.rule_table import BUILDING, GENERATING, UPDATING
from batchbridge.kit.schedules import WITHOUT_ARGUMENTS
from batchbridge_trl.meaning import RATIO_LEVELS, loss_types, scales
from batchbridge_trl.rules.facts import (
    ACCUMULATION,
    ALL,
    ARGUMENTS,
    EVAL_MICRO,
    GENERATIONS,
    INIT,
    POST_INIT,
    SIZES,
    Facts,
    Rule,
)
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.rules.groups import (
    whole_evaluation_groups,
)
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import FIELDS, accelerator_config, gradient_accumulation_kwargs
from batchbridge_trl.world import KEY as WORLD

_LATE = "after the model has been loaded"


def _arguments_of_the_schedule(facts: Facts) -> str | None:
    name, given = facts.native["lr_scheduler_type"], facts.native["lr_scheduler_kwargs"]
    if given is None or isinstance(given, dict) or name in WITHOUT_ARGUMENTS:
        return None
    return f"lr_scheduler_kwargs = {given!r} is no mapping of arguments for the schedule {name}"


def _beyond_liger(facts: Facts) -> str | None:
    native = facts.native
    beyond = [
        f"{key} = {native.get(key)}"
        for key, off, versions in (
            ("top_entropy_quantile", 1.0, ">=0.20"),
            ("importance_sampling_level", "token", ">=0.20,<1.0"),
            ("off_policy_mask_threshold", None, ">=0.27"),
            ("entropy_coef", 0.0, ">=1.8"),
            ("use_adaptive_entropy", False, ">=1.8"),
        )
        if holds(versions, facts.version) and native.get(key) != off
    ]
    return f"{' and '.join(beyond)}: not with Liger's kernel" if facts.liger and beyond else None


def not_positive(facts: Facts) -> str | None:
    wrong = [
        f"{FIELDS[name]} = {value}"
        for name in ("world", "micro", "accumulation", "generation_batch", "steps_per_generation")
        if (value := getattr(facts.sizes, name)) is not None and value < 1
    ]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


def _reference_without_kl(facts: Facts) -> str | None:
    return (
        "sync_ref_model without a KL term (beta = 0)"
        if facts.native["sync_ref_model"] and not facts.native["beta"]
        else None
    )


def _engine_ranks(facts: Facts) -> str | None:
    native, world = facts.native, facts.sizes.world
    ranks = native["vllm_tensor_parallel_size"]
    if not native["use_vllm"] or native["vllm_mode"] != "colocate" or ranks < 1 or world % ranks == 0:
        return None
    return f"vllm_tensor_parallel_size = {ranks} must divide {WORLD} = {world}"


def _two_accumulations(facts: Facts) -> str | None:
    steps = gradient_accumulation_kwargs(facts.native).get("num_steps")
    if steps is None or facts.sizes.accumulation <= 1:
        return None
    return f"gradient_accumulation_kwargs.num_steps = {steps} beside {ACCUMULATION} = {facts.sizes.accumulation}"


def _streamed(facts: Facts) -> bool:
    return bool(facts.native.get("dataset_streaming") or facts.native.get("streaming"))


def _no_streams(facts: Facts) -> str | None:
    return "streamed datasets are not supported before trl 1.9" if _streamed(facts) else None


def _endless(facts: Facts) -> str | None:
    if not _streamed(facts) or facts.native["max_steps"] > 0:
        return None
    return "a streamed dataset has no length, so max_steps must be given"


def _unknown(key: str, known: Callable[[Any], bool], names: str) -> Callable[[Facts], str | None]:
    def test(facts: Facts) -> str | None:
        value = facts.native[key]
        return None if known(value) else f"{key} = {value}: must be one of {names}"

    return test


def _unknown_scale(facts: Facts) -> str | None:
    known = scales(facts.version)
    return _unknown("scale_rewards", lambda value: value in known, "group, batch, none, true, false")(facts)


OBJECTIVES = ("sum_then_normalize", "normalize_then_sum")
_OBJECTIVE = _unknown("multi_objective_aggregation", lambda value: value in OBJECTIVES, ", ".join(OBJECTIVES))


def _dispatch(facts: Facts) -> str | None:
    on = accelerator_config(facts.native).get("dispatch_batches") is True
    return (
        "accelerator_config.dispatch_batches = true cannot send prompts, which are text, between processes"
        if on
        else None
    )


def _unknown_loss(facts: Facts) -> str | None:
    known = loss_types(facts.version)
    return _unknown("loss_type", lambda value: value in known, ", ".join(known))(facts)


_LEVEL = _unknown("importance_sampling_level", lambda value: value in RATIO_LEVELS, ", ".join(RATIO_LEVELS))


def _unbounded_constant(facts: Facts) -> str | None:
    unbounded = facts.native["loss_type"] == "dr_grpo" and facts.native["max_completion_length"] is None
    return "loss_type = dr_grpo divides by max_completion_length, which is unset" if unbounded else None


_NOT_IN_LIGER = (
    "top_entropy_quantile",
    "importance_sampling_level",
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
)


LATER: tuple[Rule, ...] = (
    UPDATING(
        "BB-TRL-020",
        whole_evaluation_groups,
        (EVAL_MICRO, WORLD, GENERATIONS),
        "RuntimeError: shape is invalid for input, at the first evaluation",
        f"trl 0.20.0 and 0.21.0 {POST_INIT} (no check) and GRPOTrainer._generate_and_score_completions",
        evaluation_fixes,
        ">=0.20,<0.22",
    ),
    BUILDING(
        "BB-TRL-042",
        _beyond_liger,
        _NOT_IN_LIGER,
        "NotImplementedError or ValueError",
        f"trl 0.20.0 to 1.13.0 {INIT}",
        setting("use_liger_kernel", False),
        ">=0.20,<1.14",
    ),
    BUILDING(
        "BB-TRL-030",
        not_positive,
        SIZES,
        "the config is accepted; the data loader fails, or nothing is trained",
        f"{ALL} {POST_INIT} (no check)",
        size_fixes,
        ">=0.18",
    ),
    BUILDING(
        "BB-TRL-031",
        _reference_without_kl,
        ("sync_ref_model", "beta"),
        "ValueError: You passed `sync_ref_model=True` while `beta=0.0`",
        f"trl 0.28.0 to 1.16.0 {INIT}",
        setting("sync_ref_model", False),
        ">=0.28",
    ),
    BUILDING(
        "BB-TRL-032",
        _engine_ranks,
        ("vllm_tensor_parallel_size", WORLD),
        "ValueError: tensor_parallel_size must divide world size evenly",
        f"trl 0.18.0 to 0.27.2 {INIT}; 0.28.0 to 1.16.0 generation/vllm_generation.py",
        setting("vllm_tensor_parallel_size", 1),
        ">=0.18",
    ),
    BUILDING(
        "BB-TRL-033",
        _two_accumulations,
        ("accelerator_config", ACCUMULATION),
        "ValueError: The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1",
        f"{ARGUMENTS} Trainer.create_accelerator_and_postprocess",
        setting("accelerator_config", None),
    ),
    BUILDING(
        "BB-TRL-034",
        _no_streams,
        ("dataset_streaming", "streaming"),
        "NotImplementedError: Iterable datasets are not yet supported in GRPOTrainer",
        f"trl 0.17.0 to 1.8.0 {INIT}",
        setting("dataset_streaming", False),
        "<1.9",
    ),
    BUILDING(
        "BB-TRL-034",
        _endless,
        ("dataset_streaming", "streaming", "max_steps"),
        "ValueError: train_dataset does not implement __len__, max_steps has to be specified",
        "transformers 5.23.0 Trainer.__init__",
        versions=">=1.9",
    ),
    GENERATING(
        "BB-TRL-043",
        _arguments_of_the_schedule,
        ("lr_scheduler_kwargs",),
        "TypeError: argument after ** must be a mapping, from train(), after the model has been loaded",
        "transformers 4.51.3 to 5.23.0 optimization.get_scheduler",
        setting("lr_scheduler_kwargs", None),
    ),
    GENERATING(
        "BB-TRL-035",
        _unknown_scale,
        ("scale_rewards",),
        "ValueError: Invalid value for scale_rewards, after the first rollout was generated",
        "trl 0.22.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        setting("scale_rewards", "group"),
        ">=0.22",
    ),
    GENERATING(
        "BB-TRL-036",
        _OBJECTIVE,
        ("multi_objective_aggregation",),
        "ValueError: Invalid multi_objective_aggregation, after the first rollout was generated",
        "trl 0.27.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        setting("multi_objective_aggregation", OBJECTIVES[0]),
        ">=0.27",
    ),
    GENERATING(
        "BB-TRL-037",
        _dispatch,
        ("accelerator_config",),
        "TypeError at the first batch; with several processes the others wait",
        "trl 1.16.0 with accelerate 1.15.0, run on map-style data",
        setting("accelerator_config", None),
    ),
    UPDATING(
        "BB-TRL-038",
        _unknown_loss,
        ("loss_type",),
        "ValueError: Unknown loss type, at the first loss, after generation was paid for",
        "trl 0.17.0 to 1.16.0 GRPOTrainer._compute_loss",
        setting("loss_type", "grpo"),
    ),
    UPDATING(
        "BB-TRL-039",
        _LEVEL,
        ("importance_sampling_level",),
        "ValueError: Unknown importance sampling level, at the first loss, after generation was paid for",
        "trl 0.20.0 to 1.16.0 GRPOTrainer._compute_loss",
        setting("importance_sampling_level", "token"),
    ),
    UPDATING(
        "BB-TRL-040",
        _unbounded_constant,
        ("loss_type", "max_completion_length"),
        "TypeError at the first loss",
        "trl 0.17.0 to 1.16.0 GRPOTrainer._compute_loss",
        setting("max_completion_length", 512),
    ),
)
