"""The parts of a critic that are not enforced."""

from __future__ import annotations

from batchbridge import Spec
from batchbridge.kit import Request
from batchbridge.kit.refusals import Refusals, own_spec
from batchbridge_openrlhf.facts import settings_in


def _gae(spec: Spec) -> tuple[float, float] | None:
    return None if spec.critic is None else (spec.critic.gamma, spec.critic.gae_lambda)


CRITIC = Refusals()


@CRITIC.row(
    "critic",
    "the spec and the trainer differ in whether a critic is trained, which gives the advantages: set "
    "algo.advantage.estimator as it says",
    remedy="algo.advantage.estimator gae, or a specification without a critic",
)
def _critic(request: Request) -> bool:
    wanted, own = (
        (spec.critic is not None, spec.advantage.baseline == "value") for spec in (request.spec, own_spec(request))
    )
    return wanted != own


@CRITIC.row(
    "critic_advantages",
    "the spec and the trainer differ in GAE's gamma or lambda; set algo.advantage.gamma and algo.advantage.lambd",
)
def _critic_advantages(request: Request) -> bool:
    return _gae(request.spec) not in (None, _gae(own_spec(request)))


@CRITIC.row(
    "critic_steps",
    "the spec's critic trains in other steps or passes than the policy; openrlhf makes both models' schedules of the "
    "learning rate for one number of steps",
    remedy="critic.completions_per_step and passes_per_rollout as optimizer_step has them",
)
def _critic_steps(request: Request) -> bool:
    critic, step = request.spec.critic, request.spec.optimizer_step
    return critic is not None and (
        critic.completions_per_step not in (None, step.completions_per_step)
        or critic.passes_per_rollout != step.passes_per_rollout
    )


@CRITIC.row(
    "critic_warmup",
    "critic.freezing_steps keeps the policy from training also where no critic is trained: nothing trains on the first "
    "rollouts, and the policy on all of them later",
    remedy="critic.freezing_steps -1, or algo.advantage.estimator gae",
)
def _critic_warmup(request: Request) -> bool:
    own = settings_in(request.reading)
    return own["critic.freezing_steps"] >= 0 and not own.has_critic


@CRITIC.row(
    "critic_aggregation",
    "openrlhf's value loss is a mean over the optimizer step's tokens; the spec's is another one",
)
def _critic_aggregation(request: Request) -> bool:
    critic = request.spec.critic
    return critic is not None and (critic.aggregation, critic.denominator_scope) != ("token_mean", "optimizer_step")


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
