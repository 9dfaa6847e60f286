"""The cost model of a step's micro-batches, and the cut that balances it over ranks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.errors import TooLong
from batchbridge.kit.step_cost import (
    ASSUMED_OVERHEAD_TOKENS,
    MOST_RANKS,
    StepCost,
    partition_by_cost,
    step_cost,
)
from batchbridge.meaning.micro_batches import Length, MicroBatches, partition_by_tokens

LENGTHS = st.lists(st.builds(Length, st.integers(1, 60), st.integers(0, 300)), max_size=60)
COSTS = st.builds(StepCost, st.floats(0.0, 1e5), st.floats(0.0, 1.0))


def area(batch: list[int | None], lengths: list[Length], padded: bool) -> int:
    """Tokens of a micro-batch, counted anew."""
    held = [lengths[item] for item in batch if item is not None]
    if not padded:
        return sum(one.tokens for one in held)
    return len(held) * (max(one.prompt for one in held) + max(one.response for one in held))


@given(COSTS, LENGTHS, st.integers(1, 5), st.integers(1, 2000), st.booleans())
def test_every_completion_is_cut_once_in_equally_many_micro_batches_within_the_budget(
    cost: StepCost, lengths: list[Length], ranks: int, budget: int, padded: bool
) -> None:
    made = {"ranks": ranks, "tokens_per_device": budget, "padded": padded, "soft": True}
    shares = partition_by_cost(lengths, cost=cost, **made)  # type: ignore[arg-type]  # each its own type
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    batches = [batch for share in shares for batch in share]
    assert sorted(item for batch in batches for item in batch if item is not None) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        assert None not in batch or batch == [None]
        assert len(batch) == 1 or area(batch, lengths, padded) <= budget
    assert shares == partition_by_cost(lengths, cost=cost, **made)  # type: ignore[arg-type]  # each its own type
    before = partition_by_tokens(lengths, cost=cost.of_sequence, **made)  # type: ignore[arg-type]  # each its own type
    least = step_cost(before, lengths, cost, padded=padded)
    assert step_cost(shares, lengths, cost, padded=padded) <= least * (1 + 1e-9)


def test_a_completion_beyond_a_hard_budget_is_named() -> None:
    with pytest.raises(TooLong):
        partition_by_cost([Length(1, 4), Length(1, 9)], ranks=2, tokens_per_device=8, cost=StepCost())


def drawn(count: int) -> list[Length]:
    """Completions of lognormal lengths behind prompts of two tokens."""
    lengths = random.Random(3)
    return [Length(2, max(2, min(1024, int(lengths.lognormvariate(4.6, 0.9))))) for _ in range(count)]


def lockstep_excess(shares: list[MicroBatches], lengths: list[Length], cost: StepCost) -> float:
    """Turn by turn, the cost of the dearest rank over that of the mean rank."""
    alone = sum(cost.of([lengths[item] for item in batch if item is not None]) for share in shares for batch in share)
    return step_cost(shares, lengths, cost) * len(shares) / alone


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_slowest_rank_of_each_turn_is_close_to_the_mean(ranks: int) -> None:
    lengths, cost = drawn(128 * ranks), StepCost(200.0, 1 / 1536)
    made = {"ranks": ranks, "tokens_per_device": 4096, "soft": True}
    shares = partition_by_cost(lengths, cost=cost, **made)  # type: ignore[arg-type]  # each its own type
    assert lockstep_excess(shares, lengths, cost) < 1.06
    before = partition_by_tokens(lengths, **made)  # type: ignore[arg-type]  # each its own type
    assert step_cost(shares, lengths, cost) < 0.97 * step_cost(before, lengths, cost)


def test_on_very_many_ranks_the_sums_are_balanced_and_not_the_turns() -> None:
    """Every rank cuts for all, so that trying turns would take seconds of each step."""
    lengths, cost = [Length(20, 7 * k % 300) for k in range(2 * MOST_RANKS)], StepCost(pair=1 / 384)

    def both(ranks: int) -> tuple[list[MicroBatches], list[MicroBatches]]:
        sums = partition_by_tokens(lengths, ranks=ranks, tokens_per_device=400, cost=cost.of_sequence)
        return sums, partition_by_cost(lengths, ranks=ranks, tokens_per_device=400, cost=cost)

    sums, cut = both(MOST_RANKS + 1)
    assert cut == sums
    sums, cut = both(4)
    assert step_cost(cut, lengths, cost) < step_cost(sums, lengths, cost)


def test_what_costs_a_micro_batch_decides_how_many_there_are() -> None:
    lengths = drawn(64)
    cheap, dear = (
        partition_by_cost(lengths, ranks=1, tokens_per_device=4096, cost=StepCost(overhead))
        for overhead in (20.0, 4000.0)
    )
    assert len(cheap[0]) > 1.5 * len(dear[0])


def test_nothing_is_padded_where_completions_are_laid_end_to_end() -> None:
    lengths, cost = [Length(2, 10), Length(4, 100)], StepCost(7.0, 0.5)
    assert cost.of(lengths) == 7.0 + 208.0 + 0.5 * 2 * 104.0**2
    assert cost.of(lengths, padded=False) == 7.0 + 116.0 + 0.5 * (12.0**2 + 104.0**2)


QWEN2 = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151936}
"""Sizes of Qwen2-0.5B, of its published config.json."""


def test_the_cost_of_a_model_counts_the_weights_that_a_token_passes_and_attentions_products() -> None:
    config = QWEN2 | {"num_attention_heads": 14, "num_key_value_heads": 2}
    layer = 896 * (2 * 896 + 2 * 128 + 3 * 4864)
    weights = 24 * layer + 896 * 151936
    assert weights == pytest.approx(494e6, rel=0.001), "as many as the model is said to have, its embedding tied"
    cost = StepCost.of_model(config)
    assert cost.pair == pytest.approx(7 * 24 * 896 / (6 * weights))
    assert cost.of([]) == ASSUMED_OVERHEAD_TOKENS


def test_of_experts_those_count_that_a_token_passes() -> None:
    few = StepCost.of_model(QWEN2 | {"num_experts_per_tok": 2, "moe_intermediate_size": 300})
    many = StepCost.of_model(QWEN2 | {"num_experts_per_tok": 8, "moe_intermediate_size": 300})
    assert few.pair > many.pair > StepCost.of_model(QWEN2).pair
    assert many.pair == StepCost.of_model(QWEN2 | {"intermediate_size": 2400}).pair


@pytest.mark.parametrize("config", [None, {}, {"vocab_size": 10}, {"hidden_size": "?"}])
def test_where_sizes_are_not_known_every_token_costs_the_same(config: dict[str, object] | None) -> None:
    assert StepCost.of_model(config).of_sequence(300) == 300
