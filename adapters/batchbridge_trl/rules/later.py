"""What TRL notices later: while it builds the trainer, at the first rollout, or at the first loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchbridge.kit.schedules import WITHOUT_ARGUMENTS
from batchbridge_trl.meaning import RATIO_LEVELS, loss_types, scales
from batchbridge_trl.rules.facts import (
    ACCUMULATION,
    ALL,
    ARGUMENTS,
    EVAL_MICRO,
    GENERATIONS,
    INIT,
    MICRO,
    POST_INIT,
    SIZES,
    Facts,
    Rule,
)
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.rules.groups import (
    DIVISIBLE,
    at_least_two,
    evaluation_groups_among_divisors,
    groups_of_a_possible_step,
    negative_step,
    whole_evaluation_groups,
    whole_groups_per_micro_step,
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


def _liger_loss_type(facts: Facts) -> str | None:
    name = facts.native["loss_type"]
    return f"loss_type = {name}: Liger's kernel computes bnpo only" if facts.liger and name != "bnpo" else None


def _global_train_batch(facts: Facts) -> str:
    s = facts.sizes
    return (
        f"ValueError: The global train batch size ({s.world} x {s.micro}) must be evenly divisible by the number of "
        f"generations per prompt ({s.generations}), from GRPOTrainer.__init__, after the model has been loaded"
    )


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


def _not_positive(facts: Facts) -> str | None:
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


_OBJECTIVES = ("sum_then_normalize", "normalize_then_sum")
_OBJECTIVE = _unknown("multi_objective_aggregation", lambda value: value in _OBJECTIVES, ", ".join(_OBJECTIVES))


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


LATER: tuple[Rule, ...] = (
    Rule(
        "BB-TRL-041",
        "error",
        "construction",
        _liger_loss_type,
        ("use_liger_loss", "loss_type"),
        native="ValueError: The provided loss type is not supported with `use_liger_loss`",
        source=f"trl 0.17.0 {INIT}",
        fixes=setting("use_liger_loss", False),
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-029",
        "error",
        "construction",
        negative_step,
        SIZES,
        native="ValueError: maxlen must be non-negative",
        source=f"trl 0.17.0 {INIT}: the log's deque, before the sizes are looked at",
        fixes=size_fixes,
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-022",
        "error",
        "construction",
        at_least_two,
        (GENERATIONS,),
        native="ValueError: GRPO requires at least 2 generations per prompt, after the model has been loaded",
        source=f"trl 0.17.0 {INIT}",
        fixes=size_fixes,
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "construction",
        whole_groups_per_micro_step,
        (MICRO, WORLD, GENERATIONS),
        native=_global_train_batch,
        source=f"trl 0.15.0 to 0.16.1 {INIT}",
        fixes=size_fixes,
        versions="<0.17",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "construction",
        groups_of_a_possible_step,
        SIZES,
        native=f"ValueError: The effective train batch size {DIVISIBLE}, {_LATE}",
        source=f"trl 0.17.0 {INIT}",
        fixes=size_fixes,
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "construction",
        evaluation_groups_among_divisors,
        (EVAL_MICRO, WORLD, GENERATIONS),
        native=f"ValueError: The global eval batch size {DIVISIBLE}, {_LATE}",
        source=f"trl 0.15.0 to 0.17.0 {INIT}",
        fixes=evaluation_fixes,
        versions="<0.18",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "optimizer_step",
        whole_evaluation_groups,
        (EVAL_MICRO, WORLD, GENERATIONS),
        native="RuntimeError: shape is invalid for input, at the first evaluation",
        source=f"trl 0.20.0 and 0.21.0 {POST_INIT} (no check) and GRPOTrainer._generate_and_score_completions",
        fixes=evaluation_fixes,
        versions=">=0.20,<0.22",
    ),
    Rule(
        "BB-TRL-042",
        "error",
        "construction",
        _beyond_liger,
        (
            "top_entropy_quantile",
            "importance_sampling_level",
            "off_policy_mask_threshold",
            "entropy_coef",
            "use_adaptive_entropy",
        ),
        native="NotImplementedError or ValueError",
        source=f"trl 0.20.0 to 1.13.0 {INIT}",
        fixes=setting("use_liger_kernel", False),
        versions=">=0.20,<1.14",
    ),
    Rule(
        "BB-TRL-030",
        "error",
        "construction",
        _not_positive,
        SIZES,
        native="the config is accepted; the data loader fails, or nothing is trained",
        source=f"{ALL} {POST_INIT} (no check)",
        fixes=size_fixes,
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-030",
        "error",
        "first_rollout",
        _not_positive,
        SIZES,
        native="the trainer is built; its data loader or transformers' loop fails",
        source=f"trl 0.15.0 to 0.17.0 {INIT} (no check)",
        fixes=size_fixes,
        versions="<0.18",
    ),
    Rule(
        "BB-TRL-031",
        "error",
        "construction",
        _reference_without_kl,
        ("sync_ref_model", "beta"),
        native="ValueError: You passed `sync_ref_model=True` while `beta=0.0`",
        source=f"trl 0.28.0 to 1.16.0 {INIT}",
        fixes=setting("sync_ref_model", False),
        versions=">=0.28",
    ),
    Rule(
        "BB-TRL-032",
        "error",
        "construction",
        _engine_ranks,
        ("vllm_tensor_parallel_size", WORLD),
        native="ValueError: tensor_parallel_size must divide world size evenly",
        source=f"trl 0.18.0 to 0.27.2 {INIT}; 0.28.0 to 1.16.0 generation/vllm_generation.py",
        fixes=setting("vllm_tensor_parallel_size", 1),
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-033",
        "error",
        "construction",
        _two_accumulations,
        ("accelerator_config", ACCUMULATION),
        native=(
            "ValueError: The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is "
            "greater than 1"
        ),
        source=f"{ARGUMENTS} Trainer.create_accelerator_and_postprocess",
        fixes=setting("accelerator_config", None),
    ),
    Rule(
        "BB-TRL-034",
        "error",
        "construction",
        _no_streams,
        ("dataset_streaming", "streaming"),
        native="NotImplementedError: Iterable datasets are not yet supported in GRPOTrainer",
        source=f"trl 0.17.0 to 1.8.0 {INIT}",
        fixes=setting("dataset_streaming", False),
        versions="<1.9",
    ),
    Rule(
        "BB-TRL-034",
        "error",
        "construction",
        _endless,
        ("dataset_streaming", "streaming", "max_steps"),
        native="ValueError: train_dataset does not implement __len__, max_steps has to be specified",
        source="transformers 5.23.0 Trainer.__init__",
        versions=">=1.9",
    ),
    Rule(
        "BB-TRL-043",
        "error",
        "first_rollout",
        _arguments_of_the_schedule,
        ("lr_scheduler_kwargs",),
        native="TypeError: argument after ** must be a mapping, from train(), after the model has been loaded",
        source="transformers 4.51.3 to 5.23.0 optimization.get_scheduler",
        fixes=setting("lr_scheduler_kwargs", None),
    ),
    Rule(
        "BB-TRL-035",
        "error",
        "first_rollout",
        _unknown_scale,
        ("scale_rewards",),
        native="ValueError: Invalid value for scale_rewards, after the first rollout was generated",
        source="trl 0.22.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        fixes=setting("scale_rewards", "group"),
        versions=">=0.22",
    ),
    Rule(
        "BB-TRL-036",
        "error",
        "first_rollout",
        _OBJECTIVE,
        ("multi_objective_aggregation",),
        native="ValueError: Invalid multi_objective_aggregation, after the first rollout was generated",
        source="trl 0.27.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        fixes=setting("multi_objective_aggregation", _OBJECTIVES[0]),
        versions=">=0.27",
    ),
    Rule(
        "BB-TRL-037",
        "error",
        "first_rollout",
        _dispatch,
        ("accelerator_config",),
        native="TypeError at the first batch; with several processes the others wait",
        source="trl 1.16.0 with accelerate 1.15.0, run on map-style data",
        fixes=setting("accelerator_config", None),
    ),
    Rule(
        "BB-TRL-038",
        "error",
        "optimizer_step",
        _unknown_loss,
        ("loss_type",),
        native="ValueError: Unknown loss type, at the first loss, after generation was paid for",
        source="trl 0.17.0 to 1.16.0 GRPOTrainer._compute_loss",
        fixes=setting("loss_type", "grpo"),
    ),
    Rule(
        "BB-TRL-039",
        "error",
        "optimizer_step",
        _LEVEL,
        ("importance_sampling_level",),
        native="ValueError: Unknown importance sampling level, at the first loss, after generation was paid for",
        source="trl 0.20.0 to 1.16.0 GRPOTrainer._compute_loss",
        fixes=setting("importance_sampling_level", "token"),
    ),
    Rule(
        "BB-TRL-040",
        "error",
        "optimizer_step",
        _unbounded_constant,
        ("loss_type", "max_completion_length"),
        native="TypeError at the first loss",
        source="trl 0.17.0 to 1.16.0 GRPOTrainer._compute_loss",
        fixes=setting("max_completion_length", 512),
    ),
)
