"""Plans of runs whose rollouts are filled while they run."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.errors import BatchDrift, CannotAttach, PlanError
from batchbridge.kit.checkpoints import resume, state
from batchbridge.kit.drift import compare_with_plan
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Staleness, Topology

PROMPTS, PLACES, GROUP = 10, 4, 2


def spec(**fields: Any) -> Spec:
    """Two optimizer steps per rollout of 4 places, over 10 prompts; groups are filtered."""
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=PLACES, completions_per_prompt=GROUP, group_filter="replace_zero_variance"),
        optimizer_step=OptimizerStep(completions_per_step=4),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=2, lr_tick="rollout"),
        order=Order(seed=7, last_rollout="drop"),
    ).replace(**fields)


CLOSED = {"rollout.group_filter": "none"}


def test_candidates_are_the_prompts_in_the_plans_order_epoch_after_epoch() -> None:
    plan = CandidatePlan(spec(), PROMPTS)
    epochs = [plan.candidates(start, start + PROMPTS) for start in (0, PROMPTS)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(PROMPTS))
    assert epochs[0] != epochs[1]
    unfiltered = Plan(spec(**CLOSED), PROMPTS)
    assert plan.candidates(0, 8) == unfiltered.rollout(0).prompts + unfiltered.rollout(1).prompts
    assert plan.candidates(7, 13) == epochs[0][7:] + epochs[1][:3]


def test_candidates_have_the_sampling_seeds_of_their_prompts_and_epochs() -> None:
    plan = CandidatePlan(spec(), PROMPTS)
    seeds = plan.candidate_seeds(7, 13)
    expected = [plan.sampling_seed(prompt, 0, epoch=n // PROMPTS) for n, prompt in enumerate(plan.candidates(0, 13))]
    assert list(seeds) == expected[7:]
    assert plan.candidate_seeds(0, 4) == Plan(spec(**CLOSED), PROMPTS).sampling_seeds(0)
    with pytest.raises(PlanError, match="rewards decide"):
        plan.sampling_seeds(0)


def test_rollouts_and_steps_name_places() -> None:
    plan = CandidatePlan(spec(), PROMPTS)
    assert plan.rollout(3).prompts == tuple(range(PLACES))
    members = plan.step(7).members
    assert [(member.rollout, member.prompt, member.sample) for member in members] == [
        (3, 2, 0),
        (3, 2, 1),
        (3, 3, 0),
        (3, 3, 1),
    ]
    assert plan.step(7).lr_tick
    assert not plan.step(6).lr_tick
    assert plan.members_array(7, 8).tolist() == [[7, 3, 0, member.prompt, member.sample] for member in members]


@given(epochs=st.integers(0, 5), last=st.sampled_from(["drop", "short", "pad", "wrap"]), prompts=st.integers(4, 40))
def test_a_filter_changes_no_number_of_rollouts(epochs: int, last: str, prompts: int) -> None:
    asked = spec(horizon=Horizon(epochs=epochs), **{"order.last_rollout": last})
    filtered = CandidatePlan(asked, prompts)
    assert filtered.total_rollouts == Plan(asked.replace(**CLOSED), prompts).total_rollouts
    assert filtered.total_optimizer_steps == 2 * filtered.total_rollouts


def test_a_horizon_in_optimizer_steps_stays() -> None:
    assert CandidatePlan(spec(horizon=Horizon(optimizer_steps=5)), PROMPTS).total_optimizer_steps == 5


@pytest.mark.parametrize("steps", [1, 3, 4, 100])
def test_of_several_lengths_the_one_that_ends_first_counts(steps: int) -> None:
    epochs = CandidatePlan(spec(horizon=Horizon(epochs=2)), PROMPTS)
    both = CandidatePlan(spec(horizon=Horizon(epochs=2, optimizer_steps=steps)), PROMPTS)
    assert both.total_optimizer_steps == min(steps, epochs.total_optimizer_steps)
    assert both.total_rollouts <= epochs.total_rollouts


def test_what_the_run_decides_is_said_by_field() -> None:
    assert list(CandidatePlan(spec(), PROMPTS).undecided) == ["rollout.group_filter"]
    stale = spec(staleness=Staleness(mode="bounded", maximum=2), **CLOSED)
    assert list(CandidatePlan(stale, PROMPTS).undecided) == ["staleness.mode"]
    both = CandidatePlan(spec(staleness=Staleness(mode="unbounded", maximum=None)), PROMPTS)
    assert list(both.undecided) == ["rollout.group_filter", "staleness.mode"]
    with pytest.raises(PlanError, match="rewards decide"):
        CandidatePlan(spec(), PROMPTS).step_of(3, 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"order.seed": None}, "order.seed is open"),
        ({"optimizer_step.completions_per_step": None}, "completions_per_step is open"),
        ({"rollout.prompts_per_rollout": None}, "prompts_per_rollout is open"),
        ({"optimizer_step.step_may_span": "epoch"}, "rollouts do not end with epochs"),
        ({"horizon": Horizon()}, "exactly one of"),
    ],
)
def test_whatever_else_is_open_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        CandidatePlan(spec(**fields), PROMPTS)


def test_the_plan_of_a_spec_has_candidates_where_it_must() -> None:
    assert isinstance(plan_of(spec(), PROMPTS), CandidatePlan)
    assert type(plan_of(spec(**CLOSED), PROMPTS)) is Plan


def test_a_checkpoint_belongs_to_the_spec_that_was_asked_for() -> None:
    plan = CandidatePlan(spec(), PROMPTS)
    saved = state(plan, 4, ranks=1)
    other = CandidatePlan(spec(staleness=Staleness(mode="bounded", maximum=1)), PROMPTS)
    assert resume(saved, plan, where="it", ranks=1, other_ranks="").position.optimizer_steps == 4
    with pytest.raises(CannotAttach, match=r"staleness\.mode: sync in the checkpoint, bounded now"):
        resume(saved, other, where="it", ranks=1, other_ranks="")


def test_a_gradient_that_is_not_finite_is_not_called_another_objective() -> None:
    rows = [(1, 0, place, sample, 5, 1 / 20, math.inf) for place in (2, 3) for sample in range(GROUP)]
    with pytest.raises(BatchDrift, match="of place 2 sample 0 is not finite: a reward is not, or the run has diverged"):
        compare_with_plan(CandidatePlan(spec(), PROMPTS), 3, rows)


def test_a_step_is_held_against_its_places() -> None:
    plan = CandidatePlan(spec(), PROMPTS)
    rows = [(1, 0, place, sample, 5, 1 / 20) for place in (2, 3) for sample in range(GROUP)]
    compare_with_plan(plan, 3, rows)
    with pytest.raises(BatchDrift, match=r"\(rollout, pass, place, sample\)") as drift:
        compare_with_plan(plan, 2, rows)
    assert pickle.loads(pickle.dumps(drift.value)).step == 2
