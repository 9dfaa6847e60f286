"""A critic in the schema: without one nothing is otherwise, its steps are planned like the policy's."""

from __future__ import annotations

import pytest

from batchbridge import Spec
from batchbridge.errors import PlanError
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.critic_run import critics_field, run_of_critic
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Topology, every_field, walk
from batchbridge.rules import core_rules

WITHOUT = Spec(
    topology=Topology(world_size=4),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=16),
    loss=Loss(policy=LossTerm(aggregation="sequence_mean"), kl=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
).replace(**{"order.seed": 0, "micro_batch.completions_per_device": 2, "objective.old_logprobs": "rollout_start"})
CRITIC = Critic(
    completions_per_step=8, passes_per_rollout=2, aggregation="token_mean", rollout_shuffle="completions", gamma=0.99
)
WITH = WITHOUT.replace(critic=CRITIC)


def test_without_a_critic_neither_the_dict_nor_the_digest_has_a_word_of_one() -> None:
    assert "critic" not in WITHOUT.to_dict()
    assert not any(path.startswith("critic") for path, _, _ in walk(WITHOUT))
    assert Spec.from_dict({**WITHOUT.to_dict(), "critic": None}) == WITHOUT


def test_a_critic_survives_the_dict_and_is_another_run() -> None:
    assert Spec.from_dict(WITH.to_dict()) == WITH
    assert WITH.digest() != WITHOUT.digest()
    assert WITH.replace(**{"critic.gamma": 0.9}).digest() != WITH.digest()
    assert WITH.replace(**{"critic.": None}) == WITHOUT


def test_the_critics_run_has_its_steps_and_weights_and_the_policys_rollouts() -> None:
    own = run_of_critic(WITH)
    assert own.optimizer_step == OptimizerStep(
        completions_per_step=8, passes_per_rollout=2, rollout_shuffle="completions"
    )
    assert own.loss == Loss(policy=LossTerm(aggregation="token_mean"))
    assert (own.rollout, own.order, own.topology) == (WITH.rollout, WITH.order, WITH.topology)
    assert own.micro_batch == WITH.micro_batch, "none of its own: as the policy's"
    assert run_of_critic(WITH.replace(**{"critic.tokens_per_device": 99})).micro_batch.completions_per_device is None
    with pytest.raises(ValueError, match="has none"):
        run_of_critic(WITHOUT)


def test_a_critic_without_a_size_is_cut_as_the_policy_is() -> None:
    asked = WITH.replace(
        **{
            "optimizer_step.completions_per_step": None,
            "optimizer_step.micro_batches_per_step": 4,
            "critic.completions_per_step": None,
        }
    )
    assert run_of_critic(asked).optimizer_step.micro_batches_per_step == 4


def test_its_plan_trains_each_completion_of_the_same_rollouts_once_in_a_pass() -> None:
    policy = plan_of(WITH, 24)
    critic = plan_of(run_of_critic(WITH), 24)
    assert critic.total_rollouts == policy.total_rollouts == 3
    assert critic.total_optimizer_steps == 3 * 32 * 2 // 8
    for index in range(3):
        members = [row for step in critic.steps_using(index) for row in step.members]
        for turn in range(2):
            seen = [(row.prompt, row.sample) for row in members if row.pass_index == turn]
            assert sorted(seen) == sorted(policy.rollout(index).completions)


def test_a_warm_up_leaves_the_first_rollouts_to_the_critic_and_the_policy_begins_with_the_next() -> None:
    plain, spec = plan_of(WITH, 48), WITH.replace(**{"critic.warmup_rollouts": 2})
    policy, critic = plan_of(spec, 48), plan_of(run_of_critic(spec), 48)
    assert critic.total_optimizer_steps == plan_of(run_of_critic(WITH), 48).total_optimizer_steps
    assert (policy.total_rollouts, policy.total_optimizer_steps) == (6, plain.total_optimizer_steps - 2 * 2)
    assert [step.members for step in policy.steps()] == [step.members for step in plain.steps(4)]
    assert [policy.rollout(index).generated_at_step for index in range(6)] == [0, 0, 0, 2, 4, 6]
    assert list(policy.steps_using(1)) == []
    ended = plan_of(spec.replace(horizon=Horizon(optimizer_steps=4)), 48)
    assert (ended.total_optimizer_steps, ended.total_rollouts) == (4, 4), "the policy's steps, behind the warm-up"
    only = plan_of(spec.replace(horizon=Horizon(rollouts=2)), 48)
    assert (only.total_optimizer_steps, only.total_rollouts) == (0, 2)


@pytest.mark.parametrize("span", ["epoch", "run"])
def test_a_warm_up_has_no_plan_where_a_step_would_reach_over_its_end(span: str) -> None:
    spec = WITH.replace(**{"critic.warmup_rollouts": 1, "optimizer_step.step_may_span": span})
    assert plan_of(spec, 24).step(0).rollouts == (1,)
    with pytest.raises(PlanError, match="warmup_rollouts = 1: an optimizer step would reach over"):
        plan_of(spec.replace(**{"optimizer_step.completions_per_step": 24}), 24)


def test_rules_of_steps_are_asked_of_the_critic_too_and_name_its_fields() -> None:
    broken = WITH.replace(**{"critic.completions_per_step": 12, "critic.aggregation": "sequence_sum_over_constant"})
    found = {one.code: one for one in core_rules.check(broken)}
    assert found["BB106"].message.startswith("critic: ")
    assert [place.key for place in found["BB106"].where] == ["critic.aggregation", "critic.constant"]
    assert "BB123" in found
    assert "BB106" not in {one.code for one in core_rules.check(WITH)}


def test_what_is_wrong_with_both_alike_is_said_once() -> None:
    both = WITH.replace(**{"optimizer_step.completions_per_step": 12, "critic.completions_per_step": 12})
    codes = [one.code for one in core_rules.check(both.replace(**{"critic.passes_per_rollout": 1}))]
    assert codes.count("BB123") == 1


def test_every_field_of_the_critics_run_that_is_its_own_is_a_field_of_the_critic() -> None:
    fields = {path for path, _ in every_field()}
    assert all(critics_field(path) in fields for path in fields)
    assert critics_field("loss.policy.aggregation") == "critic.aggregation"
    assert critics_field("rollout.completions_per_prompt") == "rollout.completions_per_prompt"
