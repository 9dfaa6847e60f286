"""What ranks hold of a rollout, and how they run it together."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.kit.ranks import cut_shares, deal, layout, steps_cross_rollouts, steps_of_rollout
from batchbridge.kit.step_cost import StepCost
from batchbridge.meaning.micro_batches import Length
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology

LENGTHS = st.builds(Length, st.integers(1, 20), st.integers(0, 40))


def plan_of(prompts: int = 10, step: int = 6, passes: int = 1, span: str = "none", last: str = "drop") -> Plan:
    """Rollouts of 4 prompts of 3 completions over `prompts` prompts."""
    spec = Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=3),
        optimizer_step=OptimizerStep(completions_per_step=step, passes_per_rollout=passes, step_may_span=span),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=2.0),
        order=Order(seed=1, last_rollout="short", last_optimizer_step=last),
    )
    return Plan(spec, prompts)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 5))
def test_every_completion_is_dealt_to_one_rank_and_ranks_differ_by_one_at_most(costs: list[int], ranks: int) -> None:
    hands = deal(costs, ranks)
    assert sorted(item for hand in hands for item in hand) == list(range(len(costs)))
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def drawn_costs(count: int) -> list[float]:
    """Costs of completions of lognormal lengths, attention among them."""
    lengths, cost = random.Random(5), StepCost(pair=1 / 2000)
    return [cost.of_sequence(min(4096, round(lengths.lognormvariate(6.2, 1.0)))) for _ in range(count)]


def slowest(hands: Sequence[Sequence[int | None]], costs: Sequence[float]) -> float:
    """The load of the rank with most, over the mean of all."""
    loads = [sum(costs[item] for item in hand if item is not None) for hand in hands]
    return max(loads) * len(loads) / sum(loads)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_slowest_rank_has_half_a_hundredth_more_than_the_mean_at_most(ranks: int) -> None:
    costs = drawn_costs(16 * ranks)
    assert slowest(deal(costs, ranks), costs) < 1.005
    by_number = [range(rank, len(costs), ranks) for rank in range(ranks)]
    assert slowest(by_number, costs) > 1.1, "the control"


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_fixed_micro_batches_of_a_turn_cost_the_same(ranks: int) -> None:
    """As far as a turn's longest row allows: of two ranks, one has it."""
    costs = drawn_costs(32 * ranks)
    order = layout(costs, ranks=ranks, rows_per_micro_batch=4)
    blocks = [order[rank * 32 : (rank + 1) * 32] for rank in range(ranks)]
    assert slowest(blocks, costs) < 1.05
    turns = [
        [sum(costs[row] for row in block[k : k + 4] if row is not None) for block in blocks] for k in range(0, 32, 4)
    ]
    assert sum(map(max, turns)) * ranks / sum(costs) < 1.05
    as_they_came = [range(rank * 32, (rank + 1) * 32) for rank in range(ranks)]
    assert slowest(as_they_came, costs) > 1.05, "the control"


@given(st.lists(st.lists(LENGTHS, max_size=12), min_size=1, max_size=4), st.integers(1, 5))
def test_ranks_with_unequal_shares_run_equally_many_micro_batches_under_the_cap(
    shares: list[list[Length]], size: int
) -> None:
    cuts = cut_shares(shares, completions_per_device=size)
    assert len({len(cut) for cut in cuts}) == 1
    assert len(cuts[0]) == max(-(-len(share) // size) for share in shares)
    for share, cut in zip(shares, cuts, strict=True):
        assert sorted(item for rows in cut for item in rows if item is not None) == list(range(len(share)))
        assert all(rows == [None] or len(rows) <= size for rows in cut)


@given(st.lists(st.lists(LENGTHS, max_size=12), min_size=1, max_size=4), st.integers(1, 80))
def test_only_a_completion_alone_exceeds_a_token_budget(shares: list[list[Length]], budget: int) -> None:
    cuts = cut_shares(shares, completions_per_device=None, tokens_per_device=budget, padded=False)
    assert len({len(cut) for cut in cuts}) == 1
    for share, cut in zip(shares, cuts, strict=True):
        assert sorted(item for rows in cut for item in rows if item is not None) == list(range(len(share)))
        for rows in cut:
            held = [share[item].tokens for item in rows if item is not None]
            assert len(held) <= 1 or sum(held) <= budget


def test_one_cap_is_given_and_not_both() -> None:
    for caps in ((None, None), (1, 1)):
        with pytest.raises(ValueError, match="one of them"):
            cut_shares([[]], completions_per_device=caps[0], tokens_per_device=caps[1])


def test_the_steps_of_all_rollouts_are_the_plans_steps() -> None:
    for passes, last in ((1, "drop"), (2, "short")):
        plan = plan_of(passes=passes, last=last)
        found = [step for rollout in range(plan.total_rollouts) for step in steps_of_rollout(plan, rollout)]
        assert found == list(plan.steps())


def test_a_rollout_whose_rows_are_all_dropped_has_no_step() -> None:
    plan = plan_of(prompts=9)  # the third rollout has one prompt, and a step takes two
    assert [len(steps_of_rollout(plan, rollout)) for rollout in range(4)] == [2, 2, 0, 2]


@pytest.mark.parametrize(
    ("prompts", "step", "span", "crosses"),
    [(8, 6, "run", False), (10, 6, "run", False), (9, 6, "run", True), (8, 5, "epoch", True), (9, 5, "none", False)],
)
def test_steps_cross_rollouts_where_a_rollouts_size_is_no_multiple(
    prompts: int, step: int, span: str, crosses: bool
) -> None:
    plan = plan_of(prompts=prompts, step=step, span=span)
    assert steps_cross_rollouts(plan) is crosses
    assert any(len(planned.rollouts) > 1 for planned in plan.steps()) is crosses
