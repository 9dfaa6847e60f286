"""Reasons for which `wrap` does not take a trainer of TRL's, and the attributes in which a spec may differ from it.

What settings, plan and request say stands here; what only a trainer shows, in `live_refusals`.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Spec
from batchbridge.kit import LossTerm, Request, refused, walk
from batchbridge.kit.refusals import Refusals, SettableFields, any_on, common, is_on, own_spec, setting
from batchbridge.kit.versions import holds
from batchbridge_trl import releases
from batchbridge_trl.carriers import carrier
from batchbridge_trl.configured import start_in
from batchbridge_trl.live_refusals import LIVE, release_of
from batchbridge_trl.starting import COPIES, unknown_trainers

SETTLED = Refusals()
"""Refusals that settings, plan and request decide, of a configuration and of a trainer alike."""


@SETTLED.row(
    "trainer",
    "the script uses a trainer that is not TRL's GRPOTrainer, or BatchBridge cannot see which; "
    "wrap takes GRPOTrainer and its subclasses, and checks a subclass's loss against the plan before training",
    remedy="use TRL's own GRPOTrainer, and run `batchbridge check` where the script lies",
)
def _another_trainer(request: Request) -> bool | None:
    start = start_in(request.reading)
    if start is None:
        return False  # its trainer is whoever built the object's
    others = unknown_trainers(start)
    if any(name.rpartition(".")[2] in COPIES for name in others):
        return True
    return None if others or not start.trainers else False


@SETTLED.row(
    "iterable_dataset",
    "a dataset without a length has no numbers for its prompts; load it as a map-style dataset",
    remedy="set dataset_streaming=false",
)
def _streamed(request: Request) -> bool | None:
    start = start_in(request.reading)
    said = any_on(request, "dataset_streaming", "streaming")
    # A script may stream another dataset than the one that is trained on.
    return None if not said and start is not None and start.streams else said


@SETTLED.row(
    "updates_in_backward",
    "this optimizer (optim) updates weights inside backward, micro-batch by micro-batch: there is no update of a "
    "whole step, and nothing can be held against the plan before it; choose one that is not lomo, adalomo or layerwise",
)
def _updates_in_backward(request: Request) -> bool:
    """Source: transformers 4.51.3 to 5.23.0 Trainer (LayerWiseDummyOptimizer; lomo_backward of accelerate)."""
    return str(setting(request.reading, "optim")).endswith(("lomo", "layerwise"))


@SETTLED.row(
    "entropy_bonus",
    "before TRL 1.10 the entropy bonus (entropy_coef, or adaptive entropy) has the policy loss's denominators with "
    "some loss types and its own with others, which no gradient test shows; set entropy_coef=0, or use TRL 1.10 or "
    "later",
)
def _entropy_bonus(request: Request) -> bool:
    asked = (setting(request.reading, name) for name in ("entropy_coef", "use_adaptive_entropy"))
    return any(asked) and holds("<1.10", release_of(request))


@SETTLED.row(
    "top_entropy_quantile",
    "top_entropy_quantile < 1 takes its threshold per micro-batch, so the trained tokens depend on the split",
    remedy="set top_entropy_quantile=1.0",
)
def _top_entropy_quantile(request: Request) -> bool:
    return bool(setting(request.reading, "top_entropy_quantile", 1.0) < 1.0)


@SETTLED.row(
    "batch_scale_over_rollouts",
    'scale_rewards="batch" takes the deviation over one rollout, but an optimizer step draws from several',
    remedy="set scale_rewards to group or none, or sizes whose steps stay inside a rollout",
)
def _batch_scale_over_rollouts(request: Request) -> bool:
    spec, plan = request.spec, request.plan
    if spec.advantage.scale != "batch" or plan is None:
        return False
    stream = plan.passes_per_rollout * plan.prompts_per_rollout * plan.completions_per_prompt
    crosses = spec.optimizer_step.step_may_span in ("epoch", "run")
    return crosses and stream % plan.completions_per_step != 0


@SETTLED.row(
    "normalize_then_sum",
    'multi_objective_aggregation="normalize_then_sum" is a rule of TRL alone; it is kept only where the requested '
    "advantages are the trainer's own",
)
def _normalize_then_sum(request: Request) -> bool:
    own = setting(request.reading, "multi_objective_aggregation") == "normalize_then_sum"
    return own and request.spec.advantage != own_spec(request).advantage


@SETTLED.row("fsdp_xla", "FSDP of torch_xla (xla in fsdp_config) is not proven against the oracle; use FSDP2")
def _fsdp_xla(request: Request) -> bool | None:
    config = setting(request.reading, "fsdp_config") or {}
    return is_on(config.get("xla")) if isinstance(config, Mapping) else None  # a file that nobody has read


@SETTLED.row(
    "liger",
    "before TRL 1.14 use_liger_kernel (up to 0.24 use_liger_loss) computes the loss in a fused kernel, whose loss type "
    "is fixed when the trainer is built; set it to False, or use TRL 1.14 or later, where it replaces layers only",
)
def _liger(request: Request) -> bool:
    """Up to 0.24 use_liger_kernel is transformers' own, and replaces layers."""
    names = ("use_liger_loss",) if holds("<0.25", release_of(request)) else ("use_liger_kernel", "use_liger_loss")
    return holds("<1.14", release_of(request)) and any(setting(request.reading, name) for name in names)


@SETTLED.row(
    "kl_without_reference",
    "the spec has a KL penalty, but the trainer was built with beta=0 and holds no reference model",
)
def _kl_without_reference(request: Request) -> bool:
    return bool(request.spec.objective.kl_coefficient) and setting(request.reading, "beta") == 0.0


@SETTLED.row("kl_in_reward", "the spec puts the KL penalty into the reward; TRL has it in the loss only")
def _kl_in_reward(request: Request) -> bool:
    objective = request.spec.objective
    return objective.kl_placement == "reward" and bool(objective.kl_coefficient)


SETTLED.append(refused.kl_estimator("TRL has the estimators k3 and k3_times_ratio only", ("k3", "k3_times_ratio")))


@SETTLED.row(
    "loss_per_term",
    "the spec gives the KL term other weights than the policy's, or the entropy bonus others than a mean over the "
    "step's tokens; TRL adds the former up before it aggregates, and has no other way for the latter",
)
def _loss_per_term(request: Request) -> bool:
    loss, bonus = request.spec.loss, bool(request.spec.objective.entropy_coefficient)
    penalty = loss.kl is not None and loss.kl != loss.policy
    return penalty or (bonus and (loss.entropy or loss.policy) != LossTerm(aggregation="token_mean"))


@SETTLED.row(
    "sapo_of_sequences",
    "sapo with one ratio for a whole sequence (importance_sampling_level) is not proven: what a step is held against "
    "knows sapo's ratio of tokens alone",
    remedy="importance_sampling_level=token",
)
def _sapo_of_sequences(request: Request) -> bool:
    objective = request.spec.objective
    return (objective.surrogate, objective.ratio_level) == ("sapo", "sequence")


@SETTLED.row(
    "aggregation",
    "no native loss of this TRL computes this surrogate with this aggregation",
    remedy="choose a loss_type of this release: dapo, dr_grpo, grpo",
)
def _aggregation(request: Request) -> bool:
    # Before 0.17 there is no loss_type to choose, and the version is refused.
    return holds(">=0.17", release_of(request)) and carrier(request.spec, release_of(request)) is None


@SETTLED.row(
    "missing_setting",
    "the spec asks for what this release of TRL has no setting for (a ratio per sequence before 0.20, the KL estimator "
    "k3_times_ratio before 0.26)",
)
def _missing_setting(request: Request) -> bool:
    """Whether the request sets a canonical field otherwise than every trainer of its release."""
    asked = [(want, *ALL_SETTABLE[path]) for path, want, _ in walk(request.spec) if path in ALL_SETTABLE]
    return any(
        releases.lacks(attribute, release_of(request))
        and convert(want, request.spec) != releases.ATTRIBUTES[attribute].without
        for want, attribute, convert in asked
    )


SETTLED.extend([*common("TRL", "denominator_scope"), refused.value_baseline("which GRPOTrainer has not")])


@SETTLED.row("sampler_logprobs", "the spec takes old log-probabilities from the sampler; TRL scores them itself")
def _sampler_logprobs(request: Request) -> bool:
    return request.spec.objective.old_logprobs == "sampler" and not setting(request.reading, "use_vllm")


SETTLED.append(refused.no_step("or no pass over it"))

REFUSALS = (*SETTLED, *LIVE)


def _native_clip_high(value: float | None, spec: Spec) -> float:
    """The epsilon_high for a bound: TRL clamps cispo's ratio at it, the others' at 1 + epsilon_high."""
    if value is None:
        return float("inf")
    return 1.0 + value if spec.objective.surrogate == "cispo" else value


SETTABLE: SettableFields = {
    # canonical field -> (trainer attribute that the native loss or rollout reads, canonical value -> native value).
    # Source: trl 0.18.0 to 1.16.0, GRPOTrainer.__init__ and _compute_loss.
    "rollout.completions_per_prompt": ("num_generations", lambda value, spec: value),
    "rollout.truncated_completions": ("mask_truncated_completions", lambda value, spec: value == "mask"),
    "objective.ratio_level": ("importance_sampling_level", lambda value, spec: value),
    "objective.clip_low": ("epsilon_low", lambda value, spec: 1.0 if value is None else value),
    "objective.clip_high": ("epsilon_high", lambda value, spec: _native_clip_high(value, spec)),
    "objective.kl_coefficient": ("beta", lambda value, spec: value or 0.0),
}
SETTABLE_ARGS: SettableFields = {
    # canonical field -> (attribute of the trainer's `args` that the native loss reads, canonical -> native value).
    "objective.dual_clip": ("delta", lambda value, spec: value),
    "objective.kl_estimator": ("use_bias_correction_kl", lambda value, spec: value == "k3_times_ratio"),
}


ALL_SETTABLE = {**SETTABLE, **SETTABLE_ARGS}
