"""Errors that TRL notices later: while it builds the trainer, at the first rollout, or at the first loss."""

from __future__ import annotations

from collections.abc import Collection

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, GENERATING, UPDATING, Rules, says
from batchbridge.kit.schedules import WITHOUT_ARGUMENTS
from batchbridge_trl.meaning import MODE, RATIO_LEVELS, loss_types, scales
from batchbridge_trl.rules.facts import ALL, ARGUMENTS, EVAL_MICRO, INIT, LOSS, POST_INIT, SCORES, SIZES, TrlFacts
from batchbridge_trl.rules.fixes import evaluation_fixes, setting, size_fixes
from batchbridge_trl.rules.validated import whole_evaluation_groups
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import ACCUMULATION, FIELDS, GENERATIONS, accelerator_config, gradient_accumulation_kwargs
from batchbridge_trl.world import KEY as WORLD


def _unknown(facts: TrlFacts, key: str, known: Collection[object], names: str = "") -> str | None:
    value = facts.native[key]
    return None if value in known else f"{key} = {value}: must be one of {names or ', '.join(map(str, known))}"


_MODES = ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")
OBJECTIVES = ("sum_then_normalize", "normalize_then_sum")
_NOT_IN_LIGER = (
    ("top_entropy_quantile", 1.0, ">=0.20"),
    ("importance_sampling_level", "token", ">=0.20,<1.0"),
    ("off_policy_mask_threshold", None, ">=0.27"),
    ("entropy_coef", 0.0, ">=1.8"),
    ("use_adaptive_entropy", False, ">=1.8"),
)
"""Settings that Liger's kernel cannot do: what they are where they are off, and the versions that refuse them."""

RULES = Rules[TrlFacts]()


RULES.add(UPDATING, "BB-TRL-020", EVAL_MICRO, WORLD, GENERATIONS, fixes=evaluation_fixes)(
    says(
        "RuntimeError: shape is invalid for input, at the first evaluation",
        f"trl 0.20.0 and 0.21.0 {POST_INIT} (no check) and {SCORES}",
        ">=0.20,<0.22",
    )(whole_evaluation_groups)
)


@RULES.add(BUILDING, "BB-TRL-042", *(key for key, _, _ in _NOT_IN_LIGER), fixes=setting("use_liger_kernel", False))
@says("NotImplementedError or ValueError", f"trl 0.20.0 to 1.13.0 {INIT}", ">=0.20,<1.14")
def _beyond_liger(facts: TrlFacts) -> str | None:
    here = ((key, facts.native.get(key), off) for key, off, versions in _NOT_IN_LIGER if holds(versions, facts.version))
    beyond = [f"{key} = {value}" for key, value, off in here if value != off]
    return f"{' and '.join(beyond)}: not with Liger's kernel" if facts.liger and beyond else None


@RULES.add(BUILDING, "BB-TRL-030", *SIZES, fixes=size_fixes)
@says("the config is accepted; the data loader fails, or nothing is trained", f"{ALL} {POST_INIT} (no check)", ">=0.18")
def not_positive(facts: TrlFacts) -> str | None:
    wrong = [
        f"{FIELDS[name]} = {value}"
        for name in ("world", "micro", "accumulation", "generation_batch", "steps_per_generation")
        if (value := getattr(facts.sizes, name)) is not None and value < 1
    ]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


@RULES.add(BUILDING, "BB-TRL-031", "sync_ref_model", "beta", fixes=setting("sync_ref_model", False))
@says("ValueError: You passed `sync_ref_model=True` while `beta=0.0`", f"trl 0.28.0 to 1.16.0 {INIT}", ">=0.28")
def _reference_without_kl(facts: TrlFacts) -> str | None:
    synced = facts.native["sync_ref_model"] and not facts.native["beta"]
    return "sync_ref_model without a KL term (beta = 0)" if synced else None


@RULES.add(BUILDING, "BB-TRL-032", "vllm_tensor_parallel_size", WORLD, fixes=setting("vllm_tensor_parallel_size", 1))
@says(
    "ValueError: tensor_parallel_size must divide world size evenly",
    f"trl 0.18.0 to 0.27.2 {INIT}; 0.28.0 to 1.16.0 generation/vllm_generation.py",
    ">=0.18",
)
def _engine_ranks(facts: TrlFacts) -> str | None:
    native, world = facts.native, facts.sizes.world
    ranks = native["vllm_tensor_parallel_size"]
    if not native["use_vllm"] or native["vllm_mode"] != "colocate" or ranks < 1 or world % ranks == 0:
        return None
    return f"vllm_tensor_parallel_size = {ranks} must divide {WORLD} = {world}"


@RULES.add(BUILDING, "BB-TRL-091", "vllm_mode", "use_vllm", fixes=setting("vllm_mode", "colocate"))
@says(
    "ValueError: vllm_mode must be either 'server' or 'colocate'",
    "trl 1.16.0 generation/vllm_generation.py VLLMGeneration; the trainer itself before",
    ">=0.18",
)
def _unknown_vllm(facts: TrlFacts) -> str | None:
    return _unknown(facts, "vllm_mode", ("server", "colocate")) if facts.native["use_vllm"] else None


@RULES.add(BUILDING, "BB-TRL-033", "accelerator_config", ACCUMULATION, fixes=setting("accelerator_config", None))
@says(
    "ValueError: The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1",
    f"{ARGUMENTS} Trainer.create_accelerator_and_postprocess",
)
def _two_accumulations(facts: TrlFacts) -> str | None:
    steps = gradient_accumulation_kwargs(facts.native).get("num_steps")
    if steps is None or facts.sizes.accumulation <= 1:
        return None
    return f"gradient_accumulation_kwargs.num_steps = {steps} beside {ACCUMULATION} = {facts.sizes.accumulation}"


@RULES.add(BUILDING, "BB-TRL-034", "dataset_streaming", "streaming", fixes=setting("dataset_streaming", False))
@says(
    "NotImplementedError: Iterable datasets are not yet supported in GRPOTrainer", f"trl 0.17.0 to 1.8.0 {INIT}", "<1.9"
)
def _no_streams(facts: TrlFacts) -> str | None:
    return "streamed datasets are not supported before trl 1.9" if facts.streams else None


@RULES.add(BUILDING, "BB-TRL-034", "dataset_streaming", "streaming", "max_steps")
@says(
    "ValueError: train_dataset does not implement __len__, max_steps has to be specified",
    "transformers 5.23.0 Trainer.__init__",
    ">=1.9",
)
def _endless(facts: TrlFacts) -> str | None:
    if not facts.streams or facts.native["max_steps"] > 0:
        return None
    return "a streamed dataset has no length, so max_steps must be given"


@RULES.add(GENERATING, "BB-TRL-043", "lr_scheduler_kwargs", fixes=setting("lr_scheduler_kwargs", None))
@says(
    "TypeError: argument after ** must be a mapping, from train(), after the model has been loaded",
    "transformers 4.51.3 to 5.23.0 optimization.get_scheduler",
)
def _arguments_of_the_schedule(facts: TrlFacts) -> str | None:
    name, given = facts.native["lr_scheduler_type"], facts.native["lr_scheduler_kwargs"]
    if given is None or isinstance(given, dict) or name in WITHOUT_ARGUMENTS:
        return None
    return f"lr_scheduler_kwargs = {given!r} is not a mapping of arguments for the schedule {name}"


_FLOOR = ("min_lr", "min_lr_rate")
_NEEDED = {
    **dict.fromkeys(("cosine_with_min_lr", "cosine_warmup_with_min_lr"), _FLOOR),
    "warmup_stable_decay": ("num_decay_steps",),
}
"""Schedules that need exactly one of these arguments."""


def _schedule_fixes(facts: TrlFacts) -> tuple[Fix, ...]:
    floor = _NEEDED[facts.native["lr_scheduler_type"]] == _FLOOR
    floors = setting("lr_scheduler_kwargs", {"min_lr_rate": 0.1})(facts) if floor else ()
    return (*floors, *setting("lr_scheduler_type", "linear")(facts))


@RULES.add(GENERATING, "BB-TRL-090", "lr_scheduler_type", "lr_scheduler_kwargs", fixes=_schedule_fixes)
@says(
    "ValueError: One of min_lr or min_lr_rate should be set; TypeError: missing 1 required positional argument: "
    "'num_decay_steps'; from train(), after the model has been loaded",
    "transformers 4.57.6 to 5.23.0 optimization.get_scheduler",
)
def _schedule_without_arguments(facts: TrlFacts) -> str | None:
    name, given = facts.native["lr_scheduler_type"], facts.native["lr_scheduler_kwargs"] or {}
    needed = _NEEDED.get(name)
    if needed is None or not isinstance(given, dict) or sum(given.get(key) is not None for key in needed) == 1:
        return None
    return f"lr_scheduler_type = {name} needs {' or '.join(needed)}, and one alone, in lr_scheduler_kwargs"


@RULES.add(GENERATING, "BB-TRL-035", "scale_rewards", fixes=setting("scale_rewards", "group"))
@says(
    "ValueError: Invalid value for scale_rewards, after the first rollout was generated",
    f"trl 0.22.0 to 1.16.0 {SCORES}",
    ">=0.22",
)
def _unknown_scale(facts: TrlFacts) -> str | None:
    return _unknown(facts, "scale_rewards", scales(facts.version), "group, batch, none, true, false")


@RULES.add(
    GENERATING, "BB-TRL-036", "multi_objective_aggregation", fixes=setting("multi_objective_aggregation", OBJECTIVES[0])
)
@says(
    "ValueError: Invalid multi_objective_aggregation, after the first rollout was generated",
    f"trl 0.27.0 to 1.16.0 {SCORES}",
    ">=0.27",
)
def _unknown_objective(facts: TrlFacts) -> str | None:
    return _unknown(facts, "multi_objective_aggregation", OBJECTIVES)


@RULES.add(GENERATING, "BB-TRL-092", MODE, "use_vllm", fixes=setting(MODE, _MODES[0]))
@says(
    "ValueError: Unknown vLLM importance sampling level, after the first rollout was generated",
    f"trl 0.26.0 to 1.16.0 {SCORES}",
    ">=0.26",
)
def _unknown_correction(facts: TrlFacts) -> str | None:
    corrects = facts.native["use_vllm"] and facts.native["vllm_importance_sampling_correction"]
    return _unknown(facts, MODE, _MODES) if corrects else None


@RULES.add(GENERATING, "BB-TRL-037", "accelerator_config", fixes=setting("accelerator_config", None))
@says(
    "TypeError at the first batch; with several processes the others wait",
    "trl 1.16.0 with accelerate 1.15.0, run on map-style data",
)
def _dispatch(facts: TrlFacts) -> str | None:
    if accelerator_config(facts.native).get("dispatch_batches") is not True:
        return None
    return "accelerator_config.dispatch_batches = true cannot send prompts, which are text, between processes"


@RULES.add(UPDATING, "BB-TRL-038", "loss_type", fixes=setting("loss_type", "grpo"))
@says("ValueError: Unknown loss type, at the first loss, after generation was paid for", f"trl 0.17.0 to 1.16.0 {LOSS}")
def _unknown_loss(facts: TrlFacts) -> str | None:
    return _unknown(facts, "loss_type", loss_types(facts.version))


@RULES.add(UPDATING, "BB-TRL-039", "importance_sampling_level", fixes=setting("importance_sampling_level", "token"))
@says(
    "ValueError: Unknown importance sampling level, at the first loss, after generation was paid for",
    f"trl 0.20.0 to 1.16.0 {LOSS}",
)
def _unknown_level(facts: TrlFacts) -> str | None:
    return _unknown(facts, "importance_sampling_level", RATIO_LEVELS)


@RULES.add(UPDATING, "BB-TRL-040", "loss_type", "max_completion_length", fixes=setting("max_completion_length", 512))
@says("TypeError at the first loss", f"trl 0.17.0 to 1.16.0 {LOSS}")
def _unbounded_constant(facts: TrlFacts) -> str | None:
    unbounded = facts.native["loss_type"] == "dr_grpo" and facts.native["max_completion_length"] is None
    return "loss_type = dr_grpo divides by max_completion_length, which is unset" if unbounded else None
