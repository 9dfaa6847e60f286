"""Laws of the partition into micro-batches whose completions lie end to end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.errors import TooLong
from batchbridge.kit.packed_batches import partition_packed
from batchbridge.kit.step_cost import StepCost
from batchbridge.meaning.micro_batches import Length, MicroBatches

groups = st.lists(
    st.tuples(st.integers(1, 40), st.lists(st.integers(0, 300), min_size=1, max_size=8)), min_size=1, max_size=8
)
small = st.integers(1, 5)


def rows(made: list[tuple[int, list[int]]]) -> tuple[list[Length], list[int]]:
    """Lengths of the completions, and which prompt each has."""
    told = [(Length(prompt, tokens), number) for number, (prompt, each) in enumerate(made) for tokens in each]
    return [length for length, _ in told], [number for _, number in told]


def tokens(batch: list[int | None], lengths: list[Length], prompts: list[int]) -> int:
    """What a micro-batch reads: each prompt once."""
    held = [item for item in batch if item is not None]
    once = {prompts[item]: lengths[item].prompt for item in held}
    return sum(once.values()) + sum(lengths[item].response for item in held)


def placed(result: list[MicroBatches]) -> list[int]:
    return sorted(item for rank in result for batch in rank for item in batch if item is not None)


@given(groups, small, st.integers(1, 900))
def test_every_completion_runs_once_within_the_budget_in_equally_many_micro_batches(
    made: list[tuple[int, list[int]]], ranks: int, budget: int
) -> None:
    lengths, prompts = rows(made)
    result = partition_packed(lengths, prompts, ranks=ranks, tokens_per_device=budget, soft=True)
    assert placed(result) == list(range(len(lengths)))
    assert len(result) == ranks
    assert len({len(rank) for rank in result}) == 1
    for batch in (batch for rank in result for batch in rank):
        assert batch, "a micro-batch without a row"
        assert tokens(batch, lengths, prompts) <= budget or len(batch) == 1


@given(groups, small, small)
def test_a_size_holds_so_many_completions(made: list[tuple[int, list[int]]], ranks: int, size: int) -> None:
    lengths, prompts = rows(made)
    result = partition_packed(lengths, prompts, ranks=ranks, completions_per_device=size)
    assert placed(result) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= size for rank in result for batch in rank)
    assert len({len(rank) for rank in result}) == 1


@given(groups)
def test_where_everything_fits_each_prompt_is_read_once(made: list[tuple[int, list[int]]]) -> None:
    lengths, prompts = rows(made)
    ((batch,),) = partition_packed(lengths, prompts, ranks=1, tokens_per_device=100_000)
    seen = [prompts[item] for item in batch if item is not None]
    assert len([1 for before, now in zip([None, *seen], seen, strict=False) if before != now]) == len(made)


@given(groups, small)
def test_no_rank_has_more_than_an_equal_share_and_one_completion(made: list[tuple[int, list[int]]], ranks: int) -> None:
    lengths, prompts = rows(made)
    cost = StepCost(pair=1 / 384).of_sequence
    result = partition_packed(lengths, prompts, ranks=ranks, tokens_per_device=100_000, cost=cost)
    loads = []
    for rank in result:
        held = [item for batch in rank for item in batch if item is not None]
        own = sum(cost(lengths[item].tokens) - cost(lengths[item].prompt) for item in held)
        loads.append(
            own + sum(cost(lengths[min(i for i in held if prompts[i] == p)].prompt) for p in {prompts[i] for i in held})
        )
    # What a rank got last it got while no other had less; a prompt read on several ranks is part of what is shared.
    largest = max(cost(length.tokens) for length in lengths)
    assert max(loads) <= sum(loads) / ranks + largest


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_slowest_rank_of_each_turn_is_close_to_the_mean(ranks: int) -> None:
    drawn = random.Random(7)
    lengths, prompts = rows(
        [
            (drawn.randint(64, 512), [min(4096, round(drawn.lognormvariate(6.2, 1.0))) for _ in range(8)])
            for _ in range(4 * ranks)
        ]
    )
    cost = StepCost(pair=1 / 6000)

    def spent(batch: list[int | None]) -> float:
        held = [item for item in batch if item is not None]
        once = {prompts[item]: cost.of_sequence(lengths[item].prompt) for item in held}
        own = (cost.of_sequence(lengths[item].tokens) - cost.of_sequence(lengths[item].prompt) for item in held)
        return sum(once.values()) + sum(own)

    def excess(result: list[MicroBatches]) -> float:
        costs = [[spent(batch) for batch in rank] for rank in result]
        return sum(map(max, zip(*costs, strict=True))) * ranks / sum(map(sum, costs))

    given: dict[str, Any] = {"ranks": ranks, "tokens_per_device": 16_384, "soft": True}
    assert excess(partition_packed(lengths, prompts, cost=cost.of_sequence, **given)) < 1.03
    as_they_came = [[list(range(rank * 32, rank * 32 + 32))] for rank in range(ranks)]
    assert excess(as_they_came) > 1.1, "the control"  # type: ignore[arg-type]  # no filler among them


def test_on_very_many_ranks_fewer_cuts_are_tried() -> None:
    lengths, prompts = rows([(20, [7 * k % 300 for k in range(j, j + 4)]) for j in range(400)])
    result = partition_packed(lengths, prompts, ranks=300, tokens_per_device=1000)
    assert placed(result) == list(range(len(lengths)))


def test_groups_stay_whole_where_they_fit() -> None:
    lengths, prompts = rows([(256, [100] * 8), (256, [90] * 8), (256, [10] * 8)])
    (batches,) = partition_packed(lengths, prompts, ranks=1, tokens_per_device=1300)
    assert [Counter(prompts[item] for item in batch if item is not None) for batch in batches] == [
        {0: 8},
        {1: 8},
        {2: 8},
    ]


def test_a_completion_beyond_a_hard_budget_is_refused() -> None:
    lengths, prompts = rows([(4, [3, 9])])
    with pytest.raises(TooLong, match="completion 1 has 13 tokens"):
        partition_packed(lengths, prompts, ranks=1, tokens_per_device=12)


@pytest.mark.parametrize(
    "sizes",
    [
        {"ranks": 0, "tokens_per_device": 4},
        {"ranks": 1, "tokens_per_device": 0},
        {"ranks": 1, "completions_per_device": 0},
        {"ranks": 1},
        {"ranks": 1, "tokens_per_device": 4, "completions_per_device": 4},
    ],
)
def test_sizes_that_say_nothing_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|one of them"):
        partition_packed([Length(1, 1)], [0], **sizes)  # type: ignore[arg-type]  # what a mistaken caller gives
