"""Laws of the partition into micro-batches."""

from __future__ import annotations

import math
import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.errors import TooLong
from batchbridge.kit.step_cost import StepCost
from batchbridge.meaning.micro_batches import (
    Length,
    MicroBatches,
    linear,
    partition,
    partition_by_tokens,
)

token_counts = st.lists(st.integers(0, 500), max_size=40)
small = st.integers(1, 6)


@given(token_counts, small, small)
def test_every_completion_runs_exactly_once(costs: list[int], ranks: int, size: int) -> None:
    result = partition(costs, ranks=ranks, completions_per_device=size)
    placed = [place for rank in result for micro_batch in rank for place in micro_batch if place is not None]
    assert sorted(placed) == list(range(len(costs)))


@given(token_counts, small, small)
def test_all_ranks_run_micro_batches_of_the_same_sizes(costs: list[int], ranks: int, size: int) -> None:
    shapes = [[len(batch) for batch in rank] for rank in partition(costs, ranks=ranks, completions_per_device=size)]
    assert len(shapes) == ranks
    assert all(shape == shapes[0] for shape in shapes)


@given(token_counts, small, small)
def test_no_micro_batch_is_larger_than_asked(costs: list[int], ranks: int, size: int) -> None:
    result = partition(costs, ranks=ranks, completions_per_device=size)
    assert all(1 <= len(batch) <= size for rank in result for batch in rank)


@given(token_counts, small, small)
def test_filler_rows_are_as_few_as_equal_sizes_allow(costs: list[int], ranks: int, size: int) -> None:
    result = partition(costs, ranks=ranks, completions_per_device=size)
    fillers = sum(place is None for rank in result for batch in rank for place in batch)
    assert fillers == -len(costs) % ranks


@given(token_counts, small, small)
def test_the_number_of_micro_batches_is_the_smallest_possible(costs: list[int], ranks: int, size: int) -> None:
    result = partition(costs, ranks=ranks, completions_per_device=size)
    assert len(result[0]) == -(-len(costs) // (ranks * size))


@given(token_counts, small, small)
def test_micro_batches_go_from_long_to_short(costs: list[int], ranks: int, size: int) -> None:
    result = partition(costs, ranks=ranks, completions_per_device=size)
    rounds = [
        [costs[place] for batch in step for place in batch if place is not None] for step in zip(*result, strict=True)
    ]
    for longer, shorter in pairwise(rounds):
        assert min(longer) >= max(shorter)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40), small, small)
def test_the_ranks_loads_differ_by_at_most_one_completion_per_micro_batch(
    costs: list[int], ranks: int, size: int
) -> None:
    result = partition(costs, ranks=ranks, completions_per_device=size)
    for step in zip(*result, strict=True):
        loads = [sum(costs[place] for place in batch if place is not None) for batch in step]
        assert max(loads) - min(loads) <= max(costs)


@pytest.mark.parametrize(("ranks", "size"), [(0, 1), (1, 0), (-1, 1)])
def test_sizes_below_one_are_refused(ranks: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        partition([1], ranks=ranks, completions_per_device=size)


def test_a_known_partition() -> None:
    assert partition([5, 9, 1, 7, 3], ranks=2, completions_per_device=2) == [[[1, 4], [2]], [[3, 0], [None]]]


# ---- by tokens

lengths = st.lists(st.builds(Length, prompt=st.integers(1, 60), response=st.integers(0, 200)), max_size=40)
budgets = st.integers(1, 700)


def by_tokens(items: list[Length], ranks: int, budget: int, padded: bool = True) -> list[MicroBatches]:
    return partition_by_tokens(items, ranks=ranks, tokens_per_device=budget, padded=padded, soft=True)


def read(batch: list[int | None], items: list[Length], padded: bool) -> int:
    """Tokens that a forward pass over `batch` reads."""
    there = [items[place] for place in batch if place is not None]
    if not padded:
        return sum(length.tokens for length in there)
    return len(there) * (max(length.prompt for length in there) + max(length.response for length in there))


@given(lengths, small, budgets, st.booleans())
def test_by_tokens_every_completion_runs_exactly_once(
    items: list[Length], ranks: int, budget: int, padded: bool
) -> None:
    result = by_tokens(items, ranks, budget, padded)
    placed = [place for rank in result for batch in rank for place in batch if place is not None]
    assert sorted(placed) == list(range(len(items)))


@given(lengths, small, budgets, st.booleans())
def test_by_tokens_all_ranks_run_equally_many_micro_batches(
    items: list[Length], ranks: int, budget: int, padded: bool
) -> None:
    counts = {len(rank) for rank in by_tokens(items, ranks, budget, padded)}
    assert len(counts) == 1


@given(lengths, small, budgets, st.booleans())
def test_no_micro_batch_exceeds_the_budget_but_one_completion(
    items: list[Length], ranks: int, budget: int, padded: bool
) -> None:
    for rank in by_tokens(items, ranks, budget, padded):
        for batch in rank:
            assert batch == [None] or len(batch) == 1 or read(batch, items, padded) <= budget


@given(lengths, small, budgets)
def test_fillers_stand_alone_and_only_where_a_rank_has_too_few_completions(
    items: list[Length], ranks: int, budget: int
) -> None:
    for rank in by_tokens(items, ranks, budget):
        assert all(None not in batch or batch == [None] for batch in rank)
        if [None] in rank:
            assert all(len(batch) == 1 for batch in rank)


@given(st.lists(st.integers(1, 500), max_size=40), small)
def test_the_ranks_loads_differ_by_at_most_one_completion(tokens: list[int], ranks: int) -> None:
    items = [Length(1, count) for count in tokens]
    loads = [
        sum(items[place].tokens for batch in rank for place in batch if place is not None)
        for rank in by_tokens(items, ranks, 1000)
    ]
    assert max(loads) - min(loads) <= max((length.tokens for length in items), default=0)


@given(lengths, budgets)
def test_padding_of_a_micro_batch_stays_below_what_another_one_costs(items: list[Length], budget: int) -> None:
    (rank,) = partition_by_tokens(items, ranks=1, tokens_per_device=budget, soft=True, overhead_tokens=50)
    for batch in rank:
        there = [items[place] for place in batch if place is not None]
        assert not there or read(batch, items, True) - sum(length.tokens for length in there) <= 50


def test_a_hard_budget_names_the_completion_that_exceeds_it() -> None:
    with pytest.raises(TooLong, match=r"completion 1 has 120 tokens.*least budget that holds it is 120") as raised:
        partition_by_tokens([Length(10, 20), Length(20, 100)], ranks=1, tokens_per_device=100)
    assert (raised.value.item, raised.value.tokens) == (1, 120)


@pytest.mark.parametrize(("ranks", "budget"), [(0, 1), (1, 0)])
def test_budgets_below_one_are_refused(ranks: int, budget: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        partition_by_tokens([], ranks=ranks, tokens_per_device=budget)


def test_a_known_partition_by_tokens() -> None:
    items = [Length(2, 8), Length(2, 3), Length(2, 3), Length(2, 1), Length(2, 1)]
    assert partition_by_tokens(items, ranks=1, tokens_per_device=10) == [[[0], [1, 2], [3, 4]]]
    assert partition_by_tokens(items, ranks=2, tokens_per_device=10) == [[[0], [3]], [[1, 2], [4]]]
    assert partition_by_tokens(items[:1], ranks=2, tokens_per_device=10) == [[[0]], [[None]]]


def lognormal(count: int) -> list[Length]:
    """Prompts of 10 to 60 tokens, responses lognormal with mean 150, at most 1024 tokens."""
    rng = random.Random(0)
    mu, sigma = math.log(150) - 0.5 * 0.9**2, 0.9
    return [Length(rng.randint(10, 60), max(1, min(int(rng.lognormvariate(mu, sigma)), 1024))) for _ in range(count)]


@pytest.mark.parametrize("cost", [linear, StepCost(pair=1 / 5376).of_sequence], ids=["linear", "with attention"])
@pytest.mark.parametrize(("count", "ranks"), [(512, 8), (1024, 64), (64, 2), (100_000, 64)])
def test_the_slowest_rank_is_within_five_percent_of_the_lower_bound(count: int, ranks: int, cost) -> None:  # type: ignore[no-untyped-def]  # a function of the module
    items = lognormal(count)
    result = partition_by_tokens(items, ranks=ranks, tokens_per_device=8192, cost=cost)
    loads = [sum(cost(items[i].tokens) for batch in rank for i in batch if i is not None) for rank in result]
    assert max(loads) <= 1.05 * sum(loads) / ranks


def test_a_hundred_thousand_completions_take_less_than_a_second() -> None:
    items = lognormal(100_000)
    best = math.inf
    for _ in range(3):  # the best of three: another process may hold the core, and its caches
        started = time.process_time()
        partition_by_tokens(items, ranks=64, tokens_per_device=8192, cost=StepCost(pair=1 / 5376).of_sequence)
        best = min(best, time.process_time() - started)
    assert best < 1.0


def test_attention_counts_with_the_square_of_the_length() -> None:
    cost = StepCost(pair=1 / 600).of_sequence
    assert cost(600) == pytest.approx(2 * 600)
    assert cost(1200) == pytest.approx(3 * 1200)
