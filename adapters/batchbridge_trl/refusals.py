"""Reasons for which `wrap` does not take a trainer of TRL's, and the attributes in which a spec may differ from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batchbridge import Spec
from batchbridge.kit import LossTerm, Request, refused, walk
from batchbridge.kit.refusals import (
    Refusal,
    Settable,
    common,
    is_on,
    never,
    only_asked,
    setting,
)
from batchbridge.kit.versions import holds
from batchbridge_trl import releases, sharding
from batchbridge_trl.carriers import carrier
from batchbridge_trl.configured import (
    KNOW_THE_MODEL,
    another_trainer,
    model_in,
    router_loss,
    scales_gradients,
    sharded,
    sharded_in_vain,
    streamed,
    told_by_deepspeed,
)
from batchbridge_trl.forks import FORKS, Fork, fork_of


def _absolute_positions(trainer: Any, request: Request) -> bool:
    named = trainer.model.named_modules()
    import torch

    embeddings = [name for name, module in named if isinstance(module, torch.nn.Embedding)]
    of_patches = re.compile(r"visi|visual|image")
    return any(re.search(r"wpe|position", name) and not of_patches.search(name) for name in embeddings)


def _images(trainer: Any, request: Request) -> bool:
    followed = holds(">=1.16", _release(request)) and not releases.value(trainer, "tools")
    if followed or getattr(trainer, "_is_vlm", False):
        return not followed
    from batchbridge_trl.images import reads_images

    return reads_images(trainer)


def _release(request: Request) -> str:
    """The release of TRL that the trainer is of."""
    return str(request.reading.framework_version)


def _updates_in_backward(optim: Any) -> bool:
    """Whether an optimizer of this name has no update of its own. Source: transformers 4.51.3 to 5.23.0 Trainer
    (LayerWiseDummyOptimizer; lomo_backward of accelerate)."""
    name = str(getattr(optim, "value", optim))
    return name.endswith(("lomo", "layerwise"))


def _liger_in(release: str) -> tuple[str, ...]:
    """The settings that ask for Liger's loss. Up to 0.24 use_liger_kernel is transformers' own, and replaces layers."""
    return ("use_liger_loss",) if holds("<0.25", release) else ("use_liger_kernel", "use_liger_loss")


def _native_clip_high(value: float | None, spec: Spec) -> float:
    """The epsilon_high for a bound: TRL clamps cispo's ratio at it, the others' at 1 + epsilon_high."""
    if value is None:
        return float("inf")
    return 1.0 + value if spec.objective.surrogate == "cispo" else value


def _batch_scale_over_rollouts(trainer: Any, request: Request) -> bool:
    spec, plan = request.spec, request.plan
    if spec.advantage.scale != "batch" or plan is None:
        return False
    stream = plan.passes_per_rollout * plan.prompts_per_rollout * plan.completions_per_prompt
    crosses = spec.optimizer_step.step_may_span in ("epoch", "run")
    return crosses and stream % plan.completions_per_step != 0


def _mesh(trainer: Any, *dimensions: str) -> bool:
    """Whether one of these dimensions of Accelerate's device mesh has more than one device.

    Source: accelerate 1.15.0 ParallelismConfig; a size that nobody gave is None or 1.
    """
    mesh = getattr(trainer.accelerator, "parallelism_config", None)
    return any(getattr(mesh, f"{name}_size", None) not in (None, 1) for name in dimensions)


def _packed_in_vain(trainer: Any, request: Request) -> str | None:
    """The reason why completions that shall lie end to end cannot; None where they can, or need not."""
    if request.padding != "free":
        return None
    from batchbridge_trl.padding_free import objection

    return objection(trainer)


def _made_by(fork: Fork) -> Refusal:
    # A configuration names no class; of a script that does, `trainer` speaks.
    return Refusal(fork.name, fork.reason, lambda trainer, request: fork_of(trainer) == fork, configured=never)


def _terms_of_their_own(trainer: Any, request: Request) -> bool:
    loss, bonus = request.spec.loss, bool(request.spec.objective.entropy_coefficient)
    penalty = loss.kl is not None and loss.kl != loss.policy
    return penalty or (bonus and (loss.entropy or loss.policy) != LossTerm(aggregation="token_mean"))


def _deepspeed(trainer: Any) -> Mapping[str, Any]:
    """DeepSpeed's configuration as Accelerate has it; empty without DeepSpeed."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return {} if plugin is None else plugin.deepspeed_config


def _engine_of_its_own(config: Mapping[str, Any]) -> bool:
    """The setting by which DeepSpeed's engine is one of its own. Source: deepspeed 0.19.6 runtime/config.py,
    zero/config.py, compile/config.py, tensor_parallel/config.py."""
    zero, compiled = config.get("zero_optimization") or {}, config.get("compile") or {}
    shards = (config.get("tensor_parallel") or {}).get("autotp_size", 0)
    unmanaged = config.get("managed_gradient_accumulation") is False
    return bool(zero.get("zenflow") or compiled.get("deepcompile") or unmanaged or shards > 1)


REFUSALS: tuple[Refusal, ...] = (
    *map(_made_by, FORKS),
    Refusal(
        "trainer",
        "the script names a trainer that is not TRL's own, or none at all; one that is no GRPOTrainer of TRL is not "
        "taken, and the loss of a subclass is held against the plan when it is wrapped",
        only_asked,
        configured=lambda reading: another_trainer(reading),
        remedy="use TRL's own GRPOTrainer, and run `batchbridge check` where the script lies",
    ),
    Refusal(
        "iterable_dataset",
        "a dataset without a length has no numbers for its prompts; load it as a map-style dataset",
        only_asked,
        configured=streamed,
        remedy="set dataset_streaming=false",
    ),
    Refusal(
        "data_collator",
        "the trainer has a data collator of its own, which a wrapped run leaves out: TRL's is none, and hands a row of "
        "the dataset on as it is; change the rows in the dataset (map, with_transform)",
        lambda trainer, request: not trainer.data_collator.__module__.startswith("trl."),
        configured=never,  # TRL takes none
    ),
    Refusal(
        "updates_in_backward",
        "this optimizer (optim) updates weights inside of backward, micro-batch by micro-batch: there is no update of "
        "a whole step, and nothing can be held against the plan before it; choose one that is not lomo, adalomo or "
        "layerwise",
        lambda trainer, request: _updates_in_backward(trainer.args.optim),
        configured=lambda reading: _updates_in_backward(setting(reading, "optim", "")),
    ),
    Refusal(
        "entropy_bonus",
        "before TRL 1.10 the entropy bonus (entropy_coef, or adaptive entropy) has the policy loss's denominators with "
        "some loss types and its own with others, which no gradient test shows; set entropy_coef=0, or use TRL 1.10 or "
        "later",
        lambda trainer, request: (
            bool(releases.value(trainer, "_entropy_bonus_enabled")) and holds("<1.10", _release(request))
        ),
        configured=lambda reading: (
            bool(setting(reading, "entropy_coef", 0.0) or setting(reading, "use_adaptive_entropy", False))
            and holds("<1.10", str(reading.framework_version))
        ),
    ),
    Refusal(
        "top_entropy_quantile",
        "top_entropy_quantile < 1 takes its threshold per micro-batch, so the trained tokens depend on the split",
        lambda trainer, request: releases.value(trainer, "top_entropy_quantile") < 1.0,
        configured=lambda reading: setting(reading, "top_entropy_quantile", 1.0) < 1.0,
        remedy="set top_entropy_quantile=1.0",
    ),
    Refusal(
        "batch_scale_over_rollouts",
        'scale_rewards="batch" takes the deviation over one rollout, but an optimizer step draws from several',
        _batch_scale_over_rollouts,
        remedy="set scale_rewards to group or none, or sizes whose steps stay inside of a rollout",
    ),
    Refusal(
        "normalize_then_sum",
        'multi_objective_aggregation="normalize_then_sum" is a rule of TRL alone; it is kept only where the requested '
        "advantages are the trainer's own",
        lambda trainer, request: (
            releases.value(trainer, "multi_objective_aggregation") == "normalize_then_sum"
            and request.reading.spec is not None
            and request.spec.advantage != request.reading.spec.advantage
        ),
        configured=never,
    ),
    Refusal(
        "deepspeed_engine",
        "DeepSpeed's ZenFlow, DeepCompile, managed_gradient_accumulation=false and tensor parallelism (autotp_size) "
        "sum up and share gradients in ways of their own, which no gradient test shows: leave them out of its "
        "configuration",
        lambda trainer, request: _engine_of_its_own(_deepspeed(trainer)),
        configured=lambda reading: told_by_deepspeed(reading, _engine_of_its_own),
    ),
    Refusal(
        "deepspeed_schedule",
        "the spec's learning rate advances once per rollout (lr_tick), but DeepSpeed's engine advances it with every "
        "update; leave scheduler and optimizer out of DeepSpeed's configuration, so that the trainer makes them",
        lambda trainer, request: (
            request.spec.horizon.lr_tick == "rollout" and not {"scheduler", "optimizer"}.isdisjoint(_deepspeed(trainer))
        ),
        configured=never,
    ),
    Refusal(
        "not_sharded",
        "the configuration asks for FSDP or DeepSpeed, and Accelerate has set up neither, as on a CPU, where it says "
        'nothing of it: every rank would hold the whole model; allow=("not_sharded",) trains it so',
        sharding.is_asked_for_in_vain,
        allowable=True,
        configured=lambda reading: sharded_in_vain(reading),
        remedy="start it where Accelerate finds a GPU, or without FSDP and DeepSpeed",
    ),
    Refusal(
        "fsdp_xla",
        "FSDP of torch_xla (xla in fsdp_config) is not proven against the oracle; use FSDP2",
        lambda trainer, request: bool(trainer.is_fsdp_xla_enabled),
        configured=lambda reading: is_on((setting(reading, "fsdp_config") or {}).get("xla", False)),
    ),
    Refusal(
        "lone_head",
        sharding.LONE_HEAD,
        lambda trainer, request: sharding.has_lone_head(trainer.model),
        configured=never,  # the units are made when training begins
    ),
    Refusal(
        "expert_parallel",
        "experts or layers on different ranks (ep_size, pp_size of a distributed_config) are not proven against the "
        "oracle; leave them at 1",
        lambda trainer, request: sharding.has_experts_or_stages(trainer.model),
        configured=never,
    ),
    Refusal(
        "images",
        "before TRL 1.16 image tensors were not read, and with tools an image that a tool shows can take those of all "
        "rows beside it away: use TRL 1.16 or later, and no tools beside images",
        _images,
        configured=lambda reading: (
            model_in(reading).images if holds("<1.16", str(reading.framework_version)) else False
        ),
        remedy=f"TRL 1.16 or later, or a model that reads text only{KNOW_THE_MODEL}",
    ),
    Refusal(
        "router_loss",
        "the MoE router loss is a product of means over each micro-batch's tokens, so that its gradient depends on the "
        'split; allow=("router_loss",) trains it as TRL does, as the mean over micro-batches; or set '
        "router_aux_loss_coef=0",
        lambda trainer, request: bool(releases.value(trainer, "aux_loss_enabled")),
        allowable=True,
        configured=lambda reading: router_loss(reading),
    ),
    Refusal(
        "liger",
        "before TRL 1.14 use_liger_kernel (up to 0.24 use_liger_loss) computes the loss in a fused kernel, whose loss "
        "type is fixed when the trainer is built; set it to False, or use TRL 1.14 or later, where it replaces layers "
        "only",
        lambda trainer, request: (
            holds("<1.14", _release(request))
            and any(getattr(trainer.args, name, False) for name in _liger_in(_release(request)))
        ),
        configured=lambda reading: any(
            is_on(setting(reading, name)) for name in _liger_in(str(reading.framework_version))
        ),
    ),
    Refusal(
        "fp16",
        "the fp16 gradient scaler cannot leave out an update without tokens, and rescales on its own; use bf16",
        lambda trainer, request: trainer.accelerator.mixed_precision == "fp16",
        configured=lambda reading: scales_gradients(reading),
    ),
    Refusal(
        "absolute_positions",
        "the model has learned absolute positions, and TRL pads prompts on the left without position ids: a "
        "completion's log-probabilities depend on the rows beside it",
        _absolute_positions,
        configured=lambda reading: model_in(reading).positions,
        remedy=f"a model with rotary positions{KNOW_THE_MODEL}",
    ),
    Refusal(
        "padding_free",
        'padding="free" is asked for, and this model is not one whose completions are known to lie end to end rightly '
        '(padding="auto" then pads)',
        lambda trainer, request: _packed_in_vain(trainer, request) is not None,
        detail=_packed_in_vain,
        configured=never,
        remedy='wrap with padding="padded"',
    ),
    Refusal(
        "tensor_parallel",
        "tensor parallelism (tp_size of a parallelism_config) lets several ranks train the same completions, but TRL, "
        "and so the plan, shares completions out to every rank",
        lambda trainer, request: _mesh(trainer, "tp"),
        configured=lambda reading: sharded(reading, None, "tp"),
        remedy="leave tp_size out",
    ),
    Refusal(
        "context_parallel",
        "context and sequence parallelism (cp_size, sp_size of a parallelism_config) split completions over ranks; TRL "
        "refuses them itself while GRPOConfig is constructed",
        lambda trainer, request: _mesh(trainer, "cp", "sp"),
        configured=lambda reading: sharded(reading, None, "cp", "sp"),
        remedy="leave cp_size and sp_size out",
    ),
    Refusal(
        "kl_without_reference",
        "the spec has a KL penalty, but the trainer was built with beta=0 and holds no reference model",
        lambda trainer, request: bool(request.spec.objective.kl_coefficient) and trainer.beta == 0.0,
        configured=never,
    ),
    Refusal(
        "kl_in_reward",
        "the spec puts the KL penalty into the reward; TRL has it in the loss only",
        lambda trainer, request: (
            request.spec.objective.kl_placement == "reward" and bool(request.spec.objective.kl_coefficient)
        ),
    ),
    refused.kl_estimator("TRL has the estimators k3 and k3_times_ratio only", ("k3", "k3_times_ratio")),
    Refusal(
        "loss_per_term",
        "the spec gives the KL term other weights than the policy's, or the entropy bonus others than a mean over the "
        "step's tokens; TRL adds the former up before it aggregates, and has no other way for the latter",
        _terms_of_their_own,
    ),
    Refusal(
        "sapo_of_sequences",
        "sapo with one ratio for a whole sequence (importance_sampling_level) is not proven: what a step is held "
        "against knows sapo's ratio of tokens alone",
        lambda trainer, request: (
            request.spec.objective.surrogate == "sapo" and request.spec.objective.ratio_level == "sequence"
        ),
        remedy="importance_sampling_level=token",
    ),
    Refusal(
        "aggregation",
        "no native loss of this TRL computes this surrogate with this aggregation",
        lambda trainer, request: carrier(request.spec, _release(request)) is None,
        remedy="choose a loss_type of this release: dapo, dr_grpo, grpo",
    ),
    Refusal(
        "missing_setting",
        "the spec asks for what this release of TRL has no setting for (a ratio per sequence before 0.20, the KL "
        "estimator k3_times_ratio before 0.26)",
        lambda trainer, request: bool(_missing_settings(request)),
    ),
    *common("TRL", "denominator_scope"),
    refused.value_baseline("which GRPOTrainer has not"),
    Refusal(
        "sampler_logprobs",
        "the spec takes old log-probabilities from the sampler; TRL scores them itself",
        lambda trainer, request: request.spec.objective.old_logprobs == "sampler" and not trainer.use_vllm,
        configured=never,
    ),
    refused.no_step("or no pass over it"),
)

SETTABLE: Settable = {
    # canonical field -> (trainer attribute that the native loss or rollout reads, canonical value -> native value).
    # Source: trl 0.18.0 to 1.16.0, GRPOTrainer.__init__ and _compute_loss.
    "rollout.completions_per_prompt": ("num_generations", lambda value, spec: value),
    "rollout.truncated_completions": ("mask_truncated_completions", lambda value, spec: value == "mask"),
    "objective.ratio_level": ("importance_sampling_level", lambda value, spec: value),
    "objective.clip_low": ("epsilon_low", lambda value, spec: 1.0 if value is None else value),
    "objective.clip_high": ("epsilon_high", lambda value, spec: _native_clip_high(value, spec)),
    "objective.kl_coefficient": ("beta", lambda value, spec: value or 0.0),
}
SETTABLE_ARGS: Settable = {
    # canonical field -> (attribute of the trainer's `args` that the native loss reads, canonical -> native value).
    "objective.dual_clip": ("delta", lambda value, spec: value),
    "objective.kl_estimator": ("use_bias_correction_kl", lambda value, spec: value == "k3_times_ratio"),
}


ALL_SETTABLE = {**SETTABLE, **SETTABLE_ARGS}


def _missing_settings(request: Request) -> list[str]:
    """Canonical fields that the request sets otherwise than every trainer of its release."""
    asked = [(path, want, *ALL_SETTABLE[path]) for path, want, _ in walk(request.spec) if path in ALL_SETTABLE]
    return [
        path
        for path, want, attribute, convert in asked
        if releases.lacks(attribute, _release(request))
        and convert(want, request.spec) != releases.NEW_ATTRIBUTES[attribute][1]
    ]
