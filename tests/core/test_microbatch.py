"""Laws of the partition into micro-batches."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.microbatch import partition

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
