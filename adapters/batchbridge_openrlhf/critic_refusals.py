"""The parts of a critic that are not enforced."""

from __future__ import annotations

from batchbridge import Spec
from batchbridge.kit.refusals import Refusal, never, own_spec
from batchbridge_openrlhf.facts import settings_in


def _of_policys_size(spec: Spec) -> bool:
    critic, step = spec.critic, spec.optimizer_step
    return critic is None or (
        critic.completions_per_step in (None, step.completions_per_step)
        and critic.passes_per_rollout == step.passes_per_rollout
    )


def _has_critic(spec: Spec) -> tuple[bool, bool]:
    return spec.critic is not None, spec.advantage.baseline == "value"


def _averages_over_steps(spec: Spec) -> bool:
    critic = spec.critic
    return critic is None or (critic.aggregation, critic.denominator_scope) == ("token_mean", "optimizer_step")


def _gae(spec: Spec) -> tuple[float, float] | None:
    return None if spec.critic is None else (spec.critic.gamma, spec.critic.gae_lambda)


CRITIC: tuple[Refusal, ...] = (
    Refusal(
        "critic",
        "the spec and the trainer differ in whether a critic is trained, which gives the advantages: set "
        "algo.advantage.estimator as it says",
        lambda args, request: _has_critic(request.spec) != _has_critic(own_spec(request)),
        configured=never,
        remedy="algo.advantage.estimator gae, or a specification without a critic",
    ),
    Refusal(
        "critic_advantages",
        "the spec and the trainer differ in GAE's gamma or lambda; set algo.advantage.gamma and algo.advantage.lambd",
        lambda args, request: _gae(request.spec) not in (None, _gae(own_spec(request))),
        configured=never,
    ),
    Refusal(
        "critic_steps",
        "the spec's critic trains in other steps or passes than the policy; openrlhf makes both models' schedules of "
        "the learning rate for one number of steps",
        lambda args, request: not _of_policys_size(request.spec),
        configured=never,
        remedy="critic.completions_per_step and passes_per_rollout as optimizer_step has them",
    ),
    Refusal(
        "critic_warmup",
        "critic.freezing_steps keeps the policy from training also where no critic is trained: nothing trains on the "
        "first rollouts, and the policy on all of them later",
        lambda args, request: args.critic.freezing_steps >= 0 and own_spec(request).critic is None,
        configured=lambda reading: (
            settings_in(reading)["critic.freezing_steps"] >= 0
            and settings_in(reading)["algo.advantage.estimator"] != "gae"
        ),
        remedy="critic.freezing_steps -1, or algo.advantage.estimator gae",
    ),
    Refusal(
        "critic_aggregation",
        "openrlhf's value loss is a mean over the optimizer step's tokens; the spec's is another one",
        lambda args, request: not _averages_over_steps(request.spec),
    ),
)
SET_IN_CRITIC = (
    "critic.completions_per_step",
    "critic.rollout_shuffle",
    "critic.warmup_rollouts",
    "critic.count_empty",
    "critic.value_clip",
    "critic.completions_per_device",
    "critic.tokens_per_device",
)
"""Canonical fields that the critic's training processes bring about, or that keep the policy's from training."""
