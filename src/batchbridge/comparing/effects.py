"""The effect that a difference in each canonical field has on a run, the largest effect first: the table behind `diff`.

Every leaf of the schema has one row (a test holds the two together). The order of the rows is the ranking; its
source: what decides whether two runs train identically (plan, weights, clock), then what moves a curve and is not a
batch setting; within each, the reach of one wrong number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from batchbridge.frozen import dataclass
from batchbridge.meaning.spec import Loss, LossTerm, Spec

EffectAspect = Literal["plan", "weights", "clock", "order", "objective", "carried", "split"]
"""The aspect of a run that a field belongs to. `split`: how a step is cut and where it runs, no part of the meaning
(see `SPLIT`)."""


@dataclass(frozen=True)
class FieldEffect:
    """A row. `missing`: what None says ("value": something definite, off or unlimited; "unknown": nothing; "unfixed":
    that nothing fixes it, and each launch has another). `matters`: whether the field has any effect in a spec; a field
    without effect on both sides is not a difference."""

    field: str
    aspect: EffectAspect
    reason: str
    missing: Literal["value", "unknown", "unfixed"] = "value"
    matters: Callable[[Spec], bool] = lambda spec: True
    on: Literal["either side", "both sides"] = "either side"
    """The side where the field must matter to count. A KL estimator is no further difference where one side has no KL
    at all."""
    of_surrogate: bool = False
    """Whether the field is only compared when both losses use the same surrogate."""
    rare: Callable[[Any, Any], bool] = lambda a, b: False
    """Whether a difference between two values acts in rare steps only: when a gradient is not finite, or at bounds that
    tokens of a run that goes well do not reach. `convert` writes such differences, and names them."""

    def counts(self, a: Spec, b: Spec) -> bool:
        """Whether a difference in this field has any effect."""
        return (any if self.on == "either side" else all)(self.matters(spec) for spec in (a, b))


_LONGER = "the run is longer or shorter, and a learning rate that decays ends with it"


def _kl(spec: Spec) -> bool:
    """Whether there may be a KL penalty."""
    return spec.objective.kl_placement != "none" and spec.objective.kl_coefficient != 0


def _kl_in_loss(spec: Spec) -> bool:
    return _kl(spec) and spec.objective.kl_placement != "reward"


def _entropy(spec: Spec) -> bool:
    return bool(spec.objective.entropy_coefficient)


def _entropy_term(spec: Spec) -> bool:
    return _entropy(spec) or spec.loss.entropy is not None


def _divides_by_constant(spec: Spec) -> bool:
    return "sequence_sum_over_constant" in {term.aggregation for term in terms(spec.loss).values()}


def _counts_completions(spec: Spec) -> bool:
    return any(term.aggregation not in ("token_mean", "token_sum") for term in terms(spec.loss).values())


def _scaled(spec: Spec) -> bool:
    return spec.advantage.scale != "none"


def _critic(spec: Spec) -> bool:
    return spec.critic is not None


def _critic_constant(spec: Spec) -> bool:
    return spec.critic is not None and spec.critic.aggregation == "sequence_sum_over_constant"


def _stale(spec: Spec) -> bool:
    return spec.staleness.mode != "sync"


def _shuffled(spec: Spec) -> bool:
    return spec.order.prompt_shuffle != "none" or spec.optimizer_step.rollout_shuffle != "none"


def _ratio_moves(spec: Spec) -> bool:
    # Against the current policy itself the ratio is 1, and clipping never acts. Source: rule BB126.
    return spec.objective.old_logprobs != "detached"


def _portions_matter(spec: Spec) -> bool:
    """Portions that divide an unfiltered rollout make it up exactly; others leave something over. Source: plan.py."""
    rollout, portion = spec.rollout, spec.rollout.prompts_per_generation_batch
    return rollout.group_filter != "none" or bool(
        portion and rollout.prompts_per_rollout and rollout.prompts_per_rollout % portion
    )


def _decays(spec: Spec) -> bool:
    return spec.carried.weight_decay != 0


def _always(a: Any, b: Any) -> bool:
    return True


def _beyond(bound: float) -> Callable[[Any, Any], bool]:
    """Whether every bound that is set is at least `bound`, or there is none."""
    return lambda a, b: all(value is None or value >= bound for value in (a, b))


def _adam(spec: Spec) -> bool:
    return spec.carried.optimizer != "sgd"


_STEP_MEMBERS = "every update averages over more or fewer completions: its noise and its share of an epoch change"
_TERM = "each response token gets another weight in the gradient, by its completion's length"

_of_critic = partial(FieldEffect, matters=_critic, on="both sides")
_of_kl = partial(FieldEffect, matters=_kl, on="both sides")
_of_kl_term = partial(FieldEffect, matters=_kl_in_loss)
_of_entropy_term = partial(FieldEffect, matters=_entropy_term)
_of_ratio = partial(FieldEffect, matters=_ratio_moves, of_surrogate=True)

EFFECTS: tuple[FieldEffect, ...] = (
    # ---- a term that the schema has no word for may do anything
    FieldEffect("open_terms", "objective", "the loss or the advantages have a term that the schema has no word for"),
    # ---- plan: what is generated, and what each optimizer step trains on
    FieldEffect("optimizer_step.completions_per_step", "plan", _STEP_MEMBERS),
    FieldEffect("optimizer_step.tokens_per_step", "plan", _STEP_MEMBERS),
    FieldEffect("optimizer_step.parts_per_rollout", "plan", _STEP_MEMBERS),
    FieldEffect("optimizer_step.micro_batches_per_step", "plan", _STEP_MEMBERS),
    FieldEffect("rollout.completions_per_prompt", "plan", "groups of another size give other baselines and advantages"),
    FieldEffect(
        "rollout.prompts_per_rollout",
        "plan",
        "weights generate for more or fewer steps: data is more or less off-policy, and epochs are longer or shorter",
    ),
    FieldEffect("rollout.sample_unit", "plan", "B counts something else: completions, trajectories or turns"),
    FieldEffect("optimizer_step.passes_per_rollout", "plan", "each completion is trained on more or fewer times"),
    FieldEffect("rollout.group_filter", "plan", "groups without a signal are trained, masked, dropped or replaced"),
    FieldEffect("staleness.mode", "plan", "completions come from older weights"),
    FieldEffect("staleness.maximum", "plan", "completions may be older", matters=_stale),
    FieldEffect("staleness.unit", "plan", "ages are counted in something else", matters=_stale),
    FieldEffect("rollout.truncated_completions", "plan", "completions cut at the length limit train, or do not"),
    FieldEffect(
        "rollout.prompts_per_generation_batch",
        "plan",
        "rollouts are filled from candidates in other portions",
        matters=_portions_matter,
    ),
    # ---- weights: what one response token weighs
    FieldEffect("loss.policy.aggregation", "weights", _TERM),
    FieldEffect("loss.policy.denominator_scope", "weights", "token weights depend on how the step is split"),
    FieldEffect(
        "loss.policy.constant",
        "weights",
        "the whole gradient is scaled by the ratio of the constants",
        matters=_divides_by_constant,
    ),
    FieldEffect("advantage.baseline", "weights", "rewards are compared with something else"),
    FieldEffect(
        "advantage.scale",
        "weights",
        "advantages are divided by the deviation of a group, of the others in it, of a batch, or by nothing",
    ),
    FieldEffect(
        "advantage.ddof", "weights", "the deviation of small groups differs: by sqrt(n / (n - 1))", "unknown", _scaled
    ),
    FieldEffect(
        "advantage.epsilon", "weights", "advantages of groups with nearly equal rewards differ most", "unknown", _scaled
    ),
    FieldEffect("advantage.maximum", "weights", "large advantages are cut"),
    FieldEffect("advantage.minimum", "weights", "small or very negative advantages are cut"),
    FieldEffect(
        "loss.policy.count_empty",
        "weights",
        "steps with completions without response tokens are divided by another number",
        matters=_counts_completions,
        rare=_always,
    ),
    _of_kl_term("loss.kl.aggregation", "weights", f"KL term: {_TERM}"),
    _of_kl_term("loss.kl.denominator_scope", "weights", "KL term: weights depend on the split"),
    _of_kl_term("loss.kl.constant", "weights", "KL term: scaled by the ratio of the constants"),
    _of_kl_term("loss.kl.count_empty", "weights", "KL term: empty completions count, or do not", rare=_always),
    _of_entropy_term("loss.entropy.aggregation", "weights", f"entropy term: {_TERM}"),
    _of_entropy_term("loss.entropy.denominator_scope", "weights", "entropy term: depends on the split"),
    _of_entropy_term("loss.entropy.constant", "weights", "entropy term: scaled by the constants"),
    _of_entropy_term(
        "loss.entropy.count_empty", "weights", "entropy term: empty completions count, or not", rare=_always
    ),
    # ---- the critic: where one side has none, its optimizer steps say so for all of it
    FieldEffect(
        "critic.completions_per_step", "plan", "a critic trains on other completions per step, or there is none"
    ),
    _of_critic("critic.warmup_rollouts", "plan", "the policy begins to train later"),
    _of_critic("critic.passes_per_rollout", "plan", "the critic trains more or fewer times"),
    _of_critic("critic.gamma", "weights", "GAE discounts rewards otherwise"),
    _of_critic("critic.gae_lambda", "weights", "GAE has another bias and variance"),
    _of_critic("critic.aggregation", "weights", f"value loss: {_TERM}"),
    _of_critic("critic.denominator_scope", "weights", "value loss: depends on the split"),
    _of_critic("critic.constant", "weights", "value loss: scaled by the constants", matters=_critic_constant),
    _of_critic("critic.count_empty", "weights", "value loss: empty completions count, or do not", rare=_always),
    _of_critic("critic.value_clip", "objective", "values are clipped elsewhere"),
    # ---- clock: how long, and when the learning rate moves
    FieldEffect("horizon.optimizer_steps", "clock", _LONGER),
    FieldEffect("horizon.rollouts", "clock", _LONGER),
    FieldEffect("horizon.epochs", "clock", _LONGER),
    FieldEffect("horizon.lr_tick", "clock", "warm-up and decay take another number of optimizer steps"),
    # ---- objective: the loss of one response token
    FieldEffect("objective.surrogate", "objective", "the loss is another function of the ratio", "unknown"),
    FieldEffect(
        "objective.ratio_level", "objective", "the ratio is that of a token, or of a whole completion", "unknown"
    ),
    FieldEffect("objective.old_logprobs", "objective", "the ratio is taken against other weights", "unknown"),
    FieldEffect("objective.sampler_correction", "objective", "tokens are reweighted towards the sampler, or are not"),
    FieldEffect(
        "objective.kl_placement",
        "objective",
        "the KL penalty sits in the reward, in the loss, or nowhere",
        "unknown",
        _kl,
    ),
    FieldEffect(
        "objective.kl_coefficient", "objective", "the pull to the reference is stronger or weaker", "unknown", _kl
    ),
    _of_kl("objective.kl_estimator", "objective", "KL has another bias and gradient"),
    _of_kl(
        "objective.kl_log_ratio_clamp",
        "objective",
        "where policy and reference are far apart, KL is estimated from another log ratio",
        rare=_beyond(10.0),
    ),
    _of_kl("objective.kl_clamp", "objective", "large KL values are cut", rare=_beyond(10.0)),
    _of_ratio("objective.clip_low", "objective", "the ratio is clipped elsewhere below 1"),
    _of_ratio("objective.clip_high", "objective", "the ratio is clipped elsewhere above 1"),
    _of_ratio("objective.dual_clip", "objective", "very large ratios of bad completions are cut", rare=_beyond(3.0)),
    FieldEffect("objective.entropy_coefficient", "objective", "the entropy bonus is stronger or weaker", "unknown"),
    FieldEffect("objective.reward_clip", "objective", "large rewards are cut"),
    FieldEffect(
        "objective.nonfinite_step",
        "objective",
        "a step with a non-finite gradient is skipped, applied or an error",
        "unknown",
        rare=_always,
    ),
    # ---- carried: no batch settings
    FieldEffect("carried.learning_rate", "carried", "every update is larger or smaller", "unknown"),
    FieldEffect("carried.lr_schedule", "carried", "the learning rate moves in another way", "unknown"),
    FieldEffect("carried.warmup_steps", "carried", "the learning rate rises for longer or shorter", "unknown"),
    FieldEffect("carried.warmup_ratio", "carried", "the learning rate rises for longer or shorter", "unknown"),
    FieldEffect("carried.optimizer", "carried", "the same gradients give other updates", "unknown"),
    FieldEffect("carried.max_gradient_norm", "carried", "gradients are clipped at another norm"),
    _of_critic("critic.learning_rate", "carried", "the critic's updates are longer or shorter", "unknown"),
    _of_critic("critic.max_gradient_norm", "carried", "the critic's gradients are clipped at another norm"),
    FieldEffect("carried.weight_decay", "carried", "weights shrink faster or slower", "unknown"),
    FieldEffect("carried.weight_decay_excludes", "carried", "other parameters decay", "unknown", _decays),
    FieldEffect("carried.beta1", "carried", "AdamW remembers gradients for longer or shorter", "unknown", _adam),
    FieldEffect("carried.beta2", "carried", "AdamW's step sizes adapt slower or faster", "unknown", _adam),
    FieldEffect("carried.optimizer_epsilon", "carried", "small gradients are damped more or less", "unknown", _adam),
    FieldEffect("carried.temperature", "carried", "other completions are sampled", "unknown"),
    FieldEffect("carried.top_p", "carried", "other completions are sampled", "unknown"),
    FieldEffect("carried.top_k", "carried", "other completions are sampled", "unknown"),
    FieldEffect("carried.max_completion_tokens", "carried", "completions are cut off at another length", "unknown"),
    FieldEffect("carried.max_total_tokens", "carried", "completions of long prompts end elsewhere"),
    FieldEffect("carried.max_prompt_tokens", "carried", "other prompts are cut or left out"),
    FieldEffect("carried.dropout", "carried", "the policy that is trained is noisier", "unknown"),
    FieldEffect("carried.precision", "carried", "rounding differs", "unknown"),
    FieldEffect(
        "carried.router_loss_coefficient", "carried", "mixture-of-experts models: another router loss", "unknown"
    ),
    _of_kl("carried.reference_sync_steps", "carried", "the reference moves, or does not"),
    # ---- order: which prompts come when
    FieldEffect("order.prompt_shuffle", "order", "prompts come in another kind of order"),
    FieldEffect("order.last_rollout", "order", "the last prompts of an epoch are dropped, or train"),
    FieldEffect("order.last_optimizer_step", "order", "the last completions are dropped, or make a step of their own"),
    FieldEffect("optimizer_step.step_may_span", "order", "steps end at other places where sizes do not divide"),
    FieldEffect("optimizer_step.rollout_shuffle", "order", "a rollout's steps train on other completions of it"),
    _of_critic("critic.rollout_shuffle", "order", "the critic's steps train on other completions of a rollout"),
    FieldEffect("order.seed", "order", "prompts come in another order", "unfixed", matters=_shuffled),
    # ---- split: where and in which portions a step is computed
    FieldEffect("topology.world_size", "split", "where a step runs"),
    FieldEffect("topology.tensor_parallel", "split", "where a step runs"),
    FieldEffect("topology.pipeline_parallel", "split", "where a step runs"),
    FieldEffect("topology.context_parallel", "split", "where a step runs"),
    FieldEffect("micro_batch.completions_per_device", "split", "portions of a step"),
    FieldEffect("micro_batch.tokens_per_device", "split", "portions of a step"),
    FieldEffect("micro_batch.cap", "split", "portions of a step"),
    FieldEffect("micro_batch.tokens_counted", "split", "portions of a step"),
    FieldEffect("micro_batch.forward_completions_per_device", "split", "portions of forward-only passes"),
    FieldEffect("micro_batch.forward_tokens_per_device", "split", "portions of forward-only passes"),
    _of_critic("critic.completions_per_device", "split", "portions of the critic's steps"),
    _of_critic("critic.tokens_per_device", "split", "portions of the critic's steps"),
)
"""One row per leaf of the schema, the largest effect first."""

RANK = {effect.field: rank for rank, effect in enumerate(EFFECTS)}
BY_FIELD = {effect.field: effect for effect in EFFECTS}

SPLIT = "no difference in meaning while every denominator is counted over the optimizer step"
"""The reason why `split` fields do not count. Source: invariant I9."""


def terms(loss: Loss) -> dict[str, LossTerm]:
    """The terms of a loss by name, what is left out standing as the policy term."""
    return {"policy": loss.policy, "kl": loss.kl or loss.policy, "entropy": loss.entropy or loss.policy}


def leaves(spec: Spec) -> dict[str, Any]:
    """Every leaf of the spec with its value: terms of the loss stand out, and ways to say "off" are one.

    A gradient norm of 0 clips nothing, as None; top-k of 0 or -1 is off; a length of the warm-up that is left out
    beside the other one is 0.
    """
    values = dict(spec.values)
    for name, term in terms(spec.loss).items():
        for part in ("aggregation", "denominator_scope", "constant", "count_empty"):
            values[f"loss.{name}.{part}"] = getattr(term, part)
    if values["carried.max_gradient_norm"] == 0:
        values["carried.max_gradient_norm"] = None
    if values["carried.top_k"] in (0, -1):
        values["carried.top_k"] = 0
    warmups = ("carried.warmup_steps", "carried.warmup_ratio")
    if any(values[path] is not None for path in warmups):
        values |= {path: values[path] or 0.0 for path in warmups}
    return values
