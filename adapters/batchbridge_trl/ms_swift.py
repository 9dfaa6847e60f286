"""ms-swift's `GRPOTrainer`, which is derived from TRL's and keeps little of it: what is known of it, and what is not
followed. Nothing is imported. Source: ms-swift 4.6.0 swift/rlhf_trainers (grpo_trainer.py, rollout_mixin.py,
rlhf_mixin.py, args_mixin.py), swift/trainers/mixin.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from batchbridge.kit import Code, Request
from batchbridge.kit.code_names import has_base
from batchbridge.kit.proven import evidence_here
from batchbridge.kit.values import FieldValue, by
from batchbridge_trl.proven import CODE, MS_SWIFT

MODULE = "swift.rlhf_trainers.grpo_trainer"
"""The module of its trainer in version 4."""
KNOWN_CODE = Code(framework="trl", home=CODE.home, packages=(MS_SWIFT,))
_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo")
"""Its loss types whose surrogate is TRL's of the same name."""
AS_TRL: Mapping[str, Any] = {
    # setting of ms-swift that changes a rollout or the loss -> its values with which nothing is changed.
    "use_vllm": (False,),
    "async_generate": (False,),
    "dynamic_sample": (False,),
    "overlong_filter": (False,),
    "advantage_estimator": ("grpo",),
    "kl_in_reward": (False, None),
    "scale_rewards": ("group", "batch", "none"),
    "loss_type": _LOSSES,
    "importance_sampling_level": ("token", "sequence"),
    "log_entropy": (False,),
    "rollout_importance_sampling_mode": (None,),
    "log_rollout_offpolicy_metrics": (False,),
    "off_policy_sequence_mask_delta": (None,),
    "advantage_reweight": (None,),
    "sdar_loss_coef": (0, None),
    "use_liger_kernel": (False,),
    "multi_turn_scheduler": (None,),
    "gym_env": (None,),
    "use_gym_env": (False, None),
    "sync_ref_model": (False,),
    "optimizer": (None,),
    "use_flash_ckpt": (False,),
    "resume_only_model": (False,),
    "router_aux_loss_coef": (0, None),
    "group_by_length": (False,),
    "deepspeed": (None,),
    # TRL's own, which its class has and never reads.
    "mask_truncated_completions": (False,),
    "multi_objective_aggregation": ("sum_then_normalize",),
    "off_policy_mask_threshold": (None,),
    "use_bias_correction_kl": (False,),
    "cast_lm_head_to_fp32": (False,),
}
_LOGGED = frozenset({"log_entropy"})
"""Settings of `AS_TRL` that only log: a run that is not enforced has them as natively."""
_KL_CLAMP = 10.0

_OF_A_TEACHER = frozenset({"teacher_prompt", "teacher_images"})


def is_swift(trainer: object) -> bool:
    """Whether a trainer is ms-swift's, version 4, or of a class that is derived from it."""
    return has_base(trainer, MODULE, "GRPOTrainer")


def uses(trainer: Any) -> tuple[str, ...]:
    """The parts and optional packages of `proven.CODE` that a trainer uses."""
    return (*(("deepspeed",) if trainer.is_deepspeed_enabled else ()), *((MS_SWIFT.part,) if is_swift(trainer) else ()))


def unknown(trainer: object) -> str | None:
    """The objection to the release of ms-swift that made a trainer; None where its functions are known."""
    found = evidence_here(KNOWN_CODE) if is_swift(trainer) else None
    if found is not None and found.grade == "proven":
        return None
    return "its functions are not those of a release that is known here"


def of_settings(args: Any, *, but: Collection[str] = ()) -> str | None:
    """The first setting that is not followed; None where there is none. but: settings that are."""
    for name, values in AS_TRL.items():
        if name not in but and hasattr(args, name) and getattr(args, name) not in values:
            return f"{name} = {getattr(args, name)!r} is not followed: leave it out"
    return None


def objection(trainer: Any, request: Request) -> str | None:
    """The first of what is asked of ms-swift's trainer that is not followed; None where it is taken as it is."""
    return next(_objections(trainer, request), None)


def _objections(trainer: Any, request: Request) -> Iterator[str]:
    spec, args, template = request.spec, trainer.args, trainer.template
    enforced = request.mode == "enforce"
    if (said := of_settings(args, but=() if enforced else _LOGGED)) is not None:
        yield said
    if enforced and (spec.micro_batch.tokens_per_device or spec.micro_batch.forward_tokens_per_device):
        yield "it scores rollouts in parts of per_device_train_batch_size rows: leave budgets of tokens out"
    if spec.objective.surrogate not in ("ppo", "cispo"):
        yield f"its loss of the surrogate {spec.objective.surrogate} is not known to be TRL's"
    if spec.rollout.truncated_completions == "mask" or spec.objective.kl_estimator == "k3_times_ratio":
        yield "it has no setting for truncated completions or the KL estimator that the spec asks for"
    if template.padding_free or template.sequence_parallel_size > 1:
        yield "padding_free and sequence_parallel_size lay rows otherwise: leave them out"
    if template.truncation_strategy == "raise":
        yield 'truncation_strategy = "raise" replaces a prompt that is too long by another one: use "left"'
    if trainer.is_multimodal:
        yield "models that read images are not followed"
    columns = set(getattr(trainer.train_dataset, "column_names", None) or ())
    if trainer._has_teacher_explicit() or columns & _OF_A_TEACHER or trainer.chord_sft_iterator is not None:
        yield "a teacher, by a column of the dataset too, and CHORD add terms of their own to advantages and loss"
    if trainer.is_fsdp_enabled:
        yield "FSDP was not run with it"


class SwiftSettings:
    """The settings of ms-swift's trainer by TRL's names: those of `args`, without what is for vLLM, which is off."""

    def __init__(self, args: Any) -> None:
        self._args = args

    def __getattr__(self, name: str) -> Any:
        if name.startswith("vllm_"):
            raise AttributeError(name)
        return getattr(self._args, "dataset_shuffle" if name == "shuffle_dataset" else name)


def meaning(told: Mapping[str, FieldValue], *, clamps: bool = True) -> dict[str, FieldValue]:
    """The canonical values of a TRL run with some settings, where ms-swift's are others. clamps: its release bounds the
    KL estimate of a token, as those from 4.0.4 on do."""
    scored = "ms-swift scores every rollout with the weights that generated it"
    own = {
        "objective.old_logprobs": FieldValue("rollout_start", None, scored),
        "optimizer_step.rollout_shuffle": by("none", "ms-swift trains a rollout in the order of its prompts"),
    }
    if clamps and told["objective.kl_placement"].value == "loss":
        own["objective.kl_clamp"] = FieldValue(_KL_CLAMP, None, "fixed in ms-swift's loss")
    return {**told, **own}
