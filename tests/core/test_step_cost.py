"""The cost model of a step's micro-batches, and the cut that balances it over ranks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.errors import TooLong
from batchbridge.kit.step_cost import (
    LEAST_OBSERVED,
    MOST_RANKS,
    Observed,
    StepCost,
    fit_cost,
    micro_batch_terms,
    partition_by_cost,
    step_seconds,
)
from batchbridge.meaning.micro_batches import Length, MicroBatches, partition_by_tokens

LENGTHS = st.lists(st.builds(Length, st.integers(1, 60), st.integers(0, 300)), max_size=60)
TERM = st.floats(1e-9, 1e3)
SLOWNESS = st.floats(0.2, 5.0)


@st.composite
def costs(draw: st.DrawFn, ranks: int) -> StepCost:
    slowness = draw(st.one_of(st.just(()), st.tuples(*[SLOWNESS] * ranks)))
    pair, response = draw(st.floats(0.0, 1.0)), draw(st.floats(0.0, 1.0))
    return StepCost(draw(st.floats(0.0, 1e5)), draw(TERM), pair, response, slowness)


def area(batch: list[int | None], lengths: list[Length], padded: bool) -> int:
    """Tokens of a micro-batch, counted anew."""
    held = [lengths[item] for item in batch if item is not None]
    if not padded:
        return sum(one.tokens for one in held)
    return len(held) * (max(one.prompt for one in held) + max(one.response for one in held))


@given(st.data(), LENGTHS, st.integers(1, 5), st.integers(1, 2000), st.booleans())
def test_every_completion_is_cut_once_in_equally_many_micro_batches_within_the_budget(
    data: st.DataObject, lengths: list[Length], ranks: int, budget: int, padded: bool
) -> None:
    cost = data.draw(costs(ranks))
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
    seconds = step_seconds(shares, lengths, cost, padded=padded)
    before = partition_by_tokens(lengths, cost=lambda n: cost.token * n + cost.pair * n * n, **made)  # type: ignore[arg-type]  # each its own type
    assert seconds <= step_seconds(before, lengths, cost, padded=padded) * (1 + 1e-9)


def test_a_completion_beyond_a_hard_budget_is_named() -> None:
    with pytest.raises(TooLong):
        partition_by_cost([Length(1, 4), Length(1, 9)], ranks=2, tokens_per_device=8, cost=StepCost())


def drawn(count: int) -> list[Length]:
    """Completions of lognormal lengths behind prompts of two tokens."""
    lengths = random.Random(3)
    return [Length(2, max(2, min(1024, int(lengths.lognormvariate(4.6, 0.9))))) for _ in range(count)]


def lockstep_excess(shares: list[MicroBatches], lengths: list[Length], cost: StepCost) -> float:
    """Turn by turn, seconds of the slowest rank over those of the mean rank."""
    alone = sum(
        cost.seconds([lengths[item] for item in batch if item is not None]) for share in shares for batch in share
    )
    return step_seconds(shares, lengths, cost) * len(shares) / alone


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_slowest_rank_of_each_turn_is_close_to_the_mean(ranks: int) -> None:
    lengths, cost = drawn(128 * ranks), StepCost(200.0, 1.0, 1 / 1536)
    made = {"ranks": ranks, "tokens_per_device": 4096, "soft": True}
    shares = partition_by_cost(lengths, cost=cost, **made)  # type: ignore[arg-type]  # each its own type
    assert lockstep_excess(shares, lengths, cost) < 1.06
    before = partition_by_tokens(lengths, **made)  # type: ignore[arg-type]  # each its own type
    assert step_seconds(shares, lengths, cost) < 0.97 * step_seconds(before, lengths, cost)


def test_on_very_many_ranks_the_sums_are_balanced_and_not_the_turns() -> None:
    """Every rank cuts for all, so that trying turns would take seconds of each step."""
    lengths, cost = [Length(20, 7 * k % 300) for k in range(2 * MOST_RANKS)], StepCost.assumed(64)

    def both(ranks: int) -> tuple[list[MicroBatches], list[MicroBatches]]:
        sums = partition_by_tokens(
            lengths,
            ranks=ranks,
            tokens_per_device=400,
            cost=lambda tokens: cost.token * tokens + cost.pair * tokens * tokens,
        )
        return sums, partition_by_cost(lengths, ranks=ranks, tokens_per_device=400, cost=cost)

    sums, cut = both(MOST_RANKS + 1)
    assert cut == sums
    sums, cut = both(4)
    assert step_seconds(cut, lengths, cost) < step_seconds(sums, lengths, cost)


def test_a_slow_rank_gets_less_work() -> None:
    lengths, cost = drawn(256), StepCost(50.0, 1.0, slowness=(0.75, 1.25))
    fast, slow = partition_by_cost(lengths, ranks=2, tokens_per_device=8192, cost=cost)
    tokens = [sum(area(batch, lengths, True) for batch in share if batch != [None]) for share in (fast, slow)]
    assert 1.4 < tokens[0] / tokens[1] < 2.0, "5 / 3 would be exact"


def test_what_costs_a_micro_batch_decides_how_many_there_are() -> None:
    lengths = drawn(64)
    cheap, dear = (
        partition_by_cost(lengths, ranks=1, tokens_per_device=4096, cost=StepCost(overhead, 1.0))
        for overhead in (20.0, 4000.0)
    )
    assert len(cheap[0]) > 1.5 * len(dear[0])


# ---- fitting

TRUE = StepCost(0.02, 1e-4, 2e-8, 3e-5)


def observations(count: int, *, ranks: int = 2, noise: float = 0.0, slow: float = 1.0) -> list[Observed]:
    """Micro-batches of all sizes; rank 1 is `slow` times as slow."""
    source = random.Random(1)
    found = []
    for number in range(count):
        width, rank = source.randint(10, 1000), number % ranks
        lengths = [Length(source.choice([2, 256]), width)] * source.randint(1, max(1, 4000 // width))
        seconds = TRUE.seconds(lengths) * (1 + noise * source.gauss(0, 1)) * (slow if rank == 1 else 1.0)
        found.append(Observed(rank, micro_batch_terms(lengths), seconds))
    return found


def off(found: StepCost, at: list[Observed]) -> float:
    """The largest relative deviation of a fit from the truth."""
    return max(abs(found.of(one.terms) / TRUE.of(one.terms) - 1) for one in at)


@pytest.mark.parametrize(("count", "noise", "bar"), [(LEAST_OBSERVED, 0.0, 0.06), (100, 0.0, 0.01), (100, 0.1, 0.1)])
def test_the_seconds_of_micro_batches_are_found_again(count: int, noise: float, bar: float) -> None:
    seen = observations(count, noise=noise)
    found = fit_cost(seen, StepCost.assumed(256), ranks=2)
    assert off(found, seen) < bar
    assert found.slowness == (), "noise makes no rank slow"


def test_interrupted_micro_batches_do_not_move_the_fit() -> None:
    seen = observations(40)
    spoilt = [one._replace(seconds=one.seconds * (20 if number in (3, 17) else 1)) for number, one in enumerate(seen)]
    assert off(fit_cost(spoilt, StepCost.assumed(256), ranks=2), seen) < 0.02
    halved = [one._replace(seconds=one.seconds * (0.1 if number == 5 else 1)) for number, one in enumerate(seen)]
    assert off(fit_cost(halved, StepCost.assumed(256), ranks=2), seen) < 0.05


def test_equal_lengths_leave_the_assumed_ratios() -> None:
    equal = [Observed(0, micro_batch_terms([Length(2, 150)] * 2), 0.05)] * 20
    assumed = StepCost.assumed(256)
    found = fit_cost(equal, assumed, ranks=1)
    assert found.of(equal[0].terms) == pytest.approx(0.05, rel=1e-3)
    assert found.micro_batch / found.token == pytest.approx(assumed.micro_batch / assumed.token, rel=0.02)
    assert found.pair / found.token == pytest.approx(assumed.pair / assumed.token, rel=0.02)


def test_too_few_observations_leave_what_was_assumed() -> None:
    assumed = StepCost.assumed(256)
    assert fit_cost(observations(LEAST_OBSERVED - 1), assumed, ranks=2) is assumed
    assert fit_cost([], assumed, ranks=1) is assumed
    broken = [one._replace(seconds=0.0) for one in observations(20)]
    assert fit_cost(broken, assumed, ranks=2) is assumed, "a clock that stands still"


def test_a_rank_that_takes_longer_is_slow_in_the_model() -> None:
    found = fit_cost(observations(60, slow=1.5, noise=0.05), StepCost.assumed(256), ranks=2)
    assert found.slowness_of(1) / found.slowness_of(0) == pytest.approx(1.5, rel=0.05)
    quiet = fit_cost([one for one in observations(60) if one.rank == 0], StepCost.assumed(256), ranks=2)
    assert quiet.slowness == (), "nothing is known of rank 1"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(1, 900), st.floats(1e-6, 1e4)), max_size=30)
)
def test_whatever_was_measured_the_cost_is_positive_and_the_same_again(
    seen: list[tuple[int, int, int, float]],
) -> None:
    observed = [Observed(rank, micro_batch_terms([Length(2, width)] * rows), took) for rank, rows, width, took in seen]
    found = fit_cost(observed, StepCost.assumed(64), ranks=3)
    assert found == fit_cost(observed, StepCost.assumed(64), ranks=3)
    assert min(found.micro_batch, found.token, found.pair, found.response) >= 0.0
    assert found.seconds([Length(2, 10)]) > 0.0
    assert all(value > 0.0 for value in found.slowness)


def test_nothing_is_padded_where_completions_are_laid_end_to_end() -> None:
    lengths = [Length(2, 10), Length(4, 100)]
    assert micro_batch_terms(lengths) == (1.0, 208.0, 2 * 104.0**2, 200.0)
    assert micro_batch_terms(lengths, padded=False) == (1.0, 116.0, 12.0**2 + 104.0**2, 110.0)
    assert TRUE.seconds(lengths, padded=False) < TRUE.seconds(lengths)
