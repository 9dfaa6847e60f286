"""Reasons for which `wrap` does not take a run of OpenRLHF's."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from batchbridge import Reading, Spec
from batchbridge.kit import Request, refused
from batchbridge.kit.ranks import steps_cross_rollouts
from batchbridge.kit.refusals import Refusal, common, own_spec
from batchbridge_openrlhf.critic_refusals import CRITIC
from batchbridge_openrlhf.facts import settings_in

ESTIMATORS = ("k1", "k2", "k3")
"""KL estimators whose gradient is held against the oracle, and that a like-run may ask for."""
AGGREGATIONS = ("token_mean", "sequence_mean")


def _kl_estimator(spec: Spec) -> str | None:
    return spec.objective.kl_estimator if spec.objective.kl_placement == "loss" else None


PROVEN_CORRECTIONS = (
    *("token_truncate", "token_mask", "sequence_geometric_mask"),
    *("sequence_binary_kl_mask", "token_tv_mask", "sequence_tv_mask"),
)
"""Corrections towards the sampler whose gradient is held against the oracle, by the words of `meaning`."""


def _unproven_correction(request: Request) -> bool:
    named = own_spec(request).objective.sampler_correction
    return named is not None and named.partition(" ")[0] not in PROVEN_CORRECTIONS


def _configured(name: str, reason: str, applies: Callable[[Callable[[str], Any]], bool], **more: Any) -> Refusal:
    """A refusal of settings alone: `applies` looks them up by key, in a configuration or the trainer's arguments."""
    return Refusal(
        name,
        reason,
        lambda args, request: applies(lambda key: attrgetter(key)(args)),
        configured=lambda reading: applies(settings_in(reading).__getitem__),
        **more,
    )


def _observed_in_vain(reading: Reading) -> bool:
    """Whether it is an asynchronous run whose ledger could not say which weights generated a completion that is
    trained."""
    own = settings_in(reading)
    mixed = own["train.partial_rollout_enable"] or own["algo.advantage.estimator"] == "gae"
    return bool(own["train.async_enable"] and mixed)


REFUSALS: tuple[Refusal, ...] = (
    *CRITIC,
    refused.batch_scale("openrlhf", remedy="algo.advantage.estimator group_norm"),
    Refusal(
        "advantage_with_kl",
        "the spec's advantages are another rule's than the trainer's, and the KL penalty is inside of them: openrlhf "
        "adds it per token",
        lambda args, request: (
            request.spec.advantage != own_spec(request).advantage and request.spec.objective.kl_placement == "reward"
        ),
    ),
    Refusal(
        "asynchronous",
        "train.async_enable trains on what has arrived: timing decides. It can be observed without "
        "train.partial_rollout_enable, which mixes versions of the weights in one completion, and without a critic",
        lambda args, request: (
            _observed_in_vain(request.reading) if request.mode == "observe" else bool(args.train.async_enable)
        ),
        configured=lambda reading: bool(settings_in(reading)["train.async_enable"]),
        remedy="leave train.async_enable out",
    ),
    refused.staleness("train.async_enable as it says"),
    refused.group_filter("algo.dynamic_filtering_enable, and its range"),
    _configured(
        "agent",
        "train.agent_func_path with data.max_images_per_prompt: an environment may show images between a completion's "
        "own tokens; not proven",
        lambda said: bool(said("train.agent_func_path")) and said("data.max_images_per_prompt") > 0,
        remedy="data.max_images_per_prompt 0, or leave train.agent_func_path out",
    ),
    _configured(
        "ema",
        "train.enable_ema moves its average by micro-batches that openrlhf counts itself; not proven",
        lambda said: bool(said("train.enable_ema")),
        remedy="leave train.enable_ema out",
    ),
    _configured(
        "adaptive_kl",
        "algo.kl.target changes the KL coefficient while the run goes on",
        lambda said: bool(said("algo.kl.target")),
        remedy="leave algo.kl.target out",
    ),
    _configured(
        "sequence_parallel",
        "a critic with ds.ring_attn_size above 1 is not proven",
        lambda said: said("ds.ring_attn_size") > 1 and said("algo.advantage.estimator") == "gae",
        remedy="ds.ring_attn_size 1",
    ),
    _configured(
        "tensor_parallel",
        "ds.tensor_parallel_size above 1 with ZeRO-3, ring attention, images or a critic: under ZeRO-3 transformers "
        "(5.15.0) does not load a model whose weights deepspeed cuts; the others are not proven",
        lambda said: (
            said("ds.tensor_parallel_size") > 1
            and (
                said("ds.zero_stage") == 3
                or said("ds.ring_attn_size") > 1
                or said("data.max_images_per_prompt") > 0
                or said("algo.advantage.estimator") == "gae"
            )
        ),
        remedy="ds.tensor_parallel_size 1, or ds.zero_stage 2 with neither of the others",
    ),
    _configured(
        "fp16",
        "the fp16 loss scaler leaves steps out on its own; use ds.param_dtype bf16",
        lambda said: said("ds.param_dtype") == "fp16",
    ),
    _configured(
        "router_loss",
        "actor.aux_loss_coef: the router's loss is a mean per micro-batch and depends on the split; "
        'allow=("router_loss",) accepts that',
        lambda said: said("actor.aux_loss_coef") > 1e-8,
        allowable=True,
        remedy="actor.aux_loss_coef 0",
    ),
    Refusal(
        "sampler_correction",
        "a correction by the binary KL divergence of single tokens leaves out tokens on which policy and engine agree: "
        "in float32 their divergence may come out below 0, which openrlhf takes for out of bounds (0.11.2); "
        'allow=("sampler_correction",) accepts it as openrlhf computes it',
        lambda args, request: _unproven_correction(request),
        allowable=True,
        remedy="algo.advantage.is_correction_level seq, or algo.advantage.is_correction_gating tv or ratio",
    ),
    Refusal(
        "other_correction",
        "the spec corrects towards the sampler otherwise than the trainer's own options do; set "
        "algo.advantage.is_correction_* as it says (before 0.11.2 is_correction_enable, is_correction_type)",
        lambda args, request: (
            request.spec.objective.sampler_correction != own_spec(request).objective.sampler_correction
        ),
    ),
    Refusal(
        "surrogate",
        "openrlhf's losses are ppo and gspo (ppo with a ratio over sequences)",
        lambda args, request: request.spec.objective.surrogate != "ppo",
    ),
    Refusal(
        "sequence_ratio",
        "openrlhf averages the loss over sequences where the ratio is the sequence's; the spec averages over tokens",
        lambda args, request: (
            request.spec.objective.ratio_level == "sequence" and request.spec.loss.policy.aggregation != "sequence_mean"
        ),
    ),
    refused.aggregation("openrlhf's losses aggregate as", AGGREGATIONS),
    *common("openrlhf", "denominator_scope"),
    Refusal(
        "loss_per_term",
        "openrlhf averages the KL and entropy terms over the step's tokens, whatever the policy term does; the spec "
        "gives them other weights",
        lambda args, request: any(
            coefficient and (term or request.spec.loss.policy).aggregation != "token_mean"
            for term, coefficient in (
                (request.spec.loss.kl, _kl_estimator(request.spec) and request.spec.objective.kl_coefficient),
                (request.spec.loss.entropy, request.spec.objective.entropy_coefficient),
            )
        ),
    ),
    Refusal(
        "kl_placement",
        "the spec and the trainer put the KL penalty in different places (none, reward, loss): what the loss needs is "
        "computed where the trainer's own options say it",
        lambda args, request: (
            (
                bool(request.spec.objective.kl_coefficient)
                and request.spec.objective.kl_placement != own_spec(request).objective.kl_placement
            )
            or (
                own_spec(request).objective.kl_placement == "reward"
                and request.spec.objective.kl_coefficient != own_spec(request).objective.kl_coefficient
            )
        ),
    ),
    Refusal(
        "kl_estimator",
        f"proven against the oracle are {', '.join(ESTIMATORS)}; "
        'allow=("kl_estimator",) accepts the trainer\'s own (algo.kl.unbiased_gradient)',
        lambda args, request: _kl_estimator(request.spec) not in (None, *ESTIMATORS),
        allowable=True,
    ),
    Refusal(
        "old_logprobs",
        "openrlhf scores a rollout before it trains on it; the spec takes the ratio over something else",
        lambda args, request: request.spec.objective.old_logprobs != "rollout_start",
    ),
    *common("openrlhf", "truncated_completions"),
    refused.group_size("rollout.n_samples_per_prompt", lambda args: args.rollout.n_samples_per_prompt),
    Refusal(
        "step_crosses_rollouts",
        "some optimizer step would draw from two rollouts: no rollout fills one (rollout.batch_size x "
        "rollout.n_samples_per_prompt completions below train.batch_size, or fewer prompts), or the specification asks "
        "for it. Give rollouts of at least train.batch_size completions, or a specification whose "
        "optimizer_step.step_may_span is none",
        lambda args, request: request.plan is not None and steps_cross_rollouts(request.plan),
    ),
    refused.no_step("no pass over it, or a critic's warm-up that is as long as the run"),
)
