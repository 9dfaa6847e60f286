"""Token weights, exactly: hand-computed tables, laws, and the scopes that break them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction as F
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchbridge.meaning.spec import Aggregation, DenominatorScope, LossTerm
from batchbridge.meaning.weights import Normaliser, Row, token_weights

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
SCOPES: tuple[DenominatorScope, ...] = get_args(DenominatorScope)
NORMALISED: tuple[Aggregation, ...] = ("token_mean", "sequence_mean", "prompt_mean")


def term(aggregation: Aggregation, scope: DenominatorScope = "optimizer_step", *, count_empty: bool = True) -> LossTerm:
    constant = 32 if aggregation == "sequence_sum_over_constant" else None
    return LossTerm(aggregation=aggregation, denominator_scope=scope, constant=constant, count_empty=count_empty)


# Eight completions of four prompts, on two ranks with two micro-batches each, from two rollouts.
TOKENS = (1, 2, 8, 16, 3, 30, 5, 7)
TOY = [Row(tokens=t, group=i // 2, rank=i // 4, micro_batch=i // 2, rollout=i // 4) for i, t in enumerate(TOKENS)]

# 72 tokens in all; 27 and 45 per rank (and rollout); 3, 24, 33, 12 per micro-batch (and prompt).
TABLE: dict[tuple[Aggregation, DenominatorScope], list[F]] = {
    ("token_mean", "optimizer_step"): [F(1, 72)] * 8,
    ("token_mean", "rank"): [F(1, 54)] * 4 + [F(1, 90)] * 4,
    ("token_mean", "rollout"): [F(1, 54)] * 4 + [F(1, 90)] * 4,
    ("token_mean", "micro_batch"): [F(1, 12)] * 2 + [F(1, 96)] * 2 + [F(1, 132)] * 2 + [F(1, 48)] * 2,
    ("sequence_mean", "optimizer_step"): [F(1, 8 * t) for t in TOKENS],
    ("sequence_mean", "rank"): [F(1, 8 * t) for t in TOKENS],
    ("sequence_mean", "rollout"): [F(1, 8 * t) for t in TOKENS],
    ("sequence_mean", "micro_batch"): [F(1, 8 * t) for t in TOKENS],
    ("sequence_sum", "optimizer_step"): [F(1, 8)] * 8,
    ("sequence_sum", "rank"): [F(1, 8)] * 8,
    ("sequence_sum", "rollout"): [F(1, 8)] * 8,
    ("sequence_sum", "micro_batch"): [F(1, 8)] * 8,
    ("sequence_sum_over_constant", "optimizer_step"): [F(1, 256)] * 8,
    ("sequence_sum_over_constant", "rank"): [F(1, 256)] * 8,
    ("sequence_sum_over_constant", "rollout"): [F(1, 256)] * 8,
    ("sequence_sum_over_constant", "micro_batch"): [F(1, 256)] * 8,
    ("token_sum", "optimizer_step"): [F(1)] * 8,
    ("token_sum", "rank"): [F(1)] * 8,
    ("token_sum", "rollout"): [F(1)] * 8,
    ("token_sum", "micro_batch"): [F(1)] * 8,
    ("prompt_mean", "optimizer_step"): [F(1, 12)] * 2 + [F(1, 96)] * 2 + [F(1, 132)] * 2 + [F(1, 48)] * 2,
    ("prompt_mean", "rank"): [F(1, 12)] * 2 + [F(1, 96)] * 2 + [F(1, 132)] * 2 + [F(1, 48)] * 2,
    ("prompt_mean", "rollout"): [F(1, 12)] * 2 + [F(1, 96)] * 2 + [F(1, 132)] * 2 + [F(1, 48)] * 2,
    ("prompt_mean", "micro_batch"): [F(1, 12)] * 2 + [F(1, 96)] * 2 + [F(1, 132)] * 2 + [F(1, 48)] * 2,
}


def test_the_table_has_every_aggregation_at_every_scope() -> None:
    assert set(TABLE) == {(aggregation, scope) for aggregation in AGGREGATIONS for scope in SCOPES}


@pytest.mark.parametrize(("aggregation", "scope"), TABLE)
def test_weights_of_the_toy_batch(aggregation: Aggregation, scope: DenominatorScope) -> None:
    assert token_weights(term(aggregation, scope), TOY, rollout_rows=TOY) == TABLE[aggregation, scope]


@pytest.mark.parametrize(
    ("aggregation", "scope", "scale", "spread"),
    [
        ("token_mean", "optimizer_step", 1.0, 1.0),
        ("token_mean", "micro_batch", 1.0, 11.0),
        ("token_mean", "rank", 1.0, 1.67),
        ("sequence_mean", "optimizer_step", 1.0, 30.0),
        ("sequence_sum_over_constant", "optimizer_step", 0.28125, 1.0),
        ("prompt_mean", "optimizer_step", 1.0, 11.0),
    ],
)
def test_scale_and_spread_of_the_toy_batch(
    aggregation: Aggregation, scope: DenominatorScope, scale: float, spread: float
) -> None:
    weights = token_weights(term(aggregation, scope), TOY)
    assert float(sum(w * row.tokens for w, row in zip(weights, TOY, strict=True))) == scale
    assert float(max(weights) / min(weights)) == pytest.approx(spread, abs=0.005)


def test_unequal_micro_batches_weigh_sequence_means_unequally() -> None:
    rows = [Row(tokens=4, micro_batch=0), Row(tokens=4, micro_batch=0), Row(tokens=4, micro_batch=1)]
    assert token_weights(term("sequence_mean", "micro_batch"), rows) == [F(1, 16), F(1, 16), F(1, 8)]


def test_a_rollout_denominator_is_rescaled_to_the_size_of_the_step() -> None:
    assert token_weights(term("token_mean", "rollout"), ONE_ROLLOUT[:4], rollout_rows=ONE_ROLLOUT) == [F(2, 72)] * 4


ONE_ROLLOUT = [dataclasses.replace(row, rollout=0) for row in TOY]


# ---- empty completions and padding


def test_an_empty_completion_counts_in_the_number_of_completions() -> None:
    rows = [Row(tokens=0), Row(tokens=5)]
    assert token_weights(term("sequence_mean"), rows) == [F(0), F(1, 10)]


def test_an_empty_completion_does_not_count_where_the_framework_leaves_it_out() -> None:
    rows = [Row(tokens=0), Row(tokens=5)]
    assert token_weights(term("sequence_mean", count_empty=False), rows) == [F(0), F(1, 5)]


def test_an_empty_micro_batch_keeps_its_share_of_the_step() -> None:
    rows = [Row(tokens=0, micro_batch=0), Row(tokens=5, micro_batch=1)]
    assert token_weights(term("token_mean", "micro_batch"), rows) == [F(0), F(1, 10)]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("count_empty", [True, False])
def test_a_step_without_tokens_weighs_nothing(aggregation: Aggregation, count_empty: bool) -> None:
    rows = [Row(tokens=0), Row(tokens=0)]
    assert token_weights(term(aggregation, count_empty=count_empty), rows) == [F(0), F(0)]


def test_a_step_without_rows_has_no_weights() -> None:
    assert token_weights(term("token_mean"), []) == []


# ---- laws


@st.composite
def batches(draw: st.DrawFn, *, minimum_tokens: int = 0) -> list[Row]:
    tokens = draw(st.lists(st.integers(minimum_tokens, 40), min_size=1, max_size=12))
    ranks = draw(st.integers(1, 3))
    placed = []
    for index, count in enumerate(tokens):
        rank = draw(st.integers(0, ranks - 1))
        micro_batch = (rank, draw(st.integers(0, 2)))
        placed.append(Row(tokens=count, group=index // 2, rank=rank, micro_batch=micro_batch, rollout=index // 4))
    return placed


@given(batches(minimum_tokens=1), st.sampled_from(NORMALISED), st.sampled_from(SCOPES))
def test_means_over_completions_with_tokens_sum_to_one(
    rows: list[Row], aggregation: Aggregation, scope: DenominatorScope
) -> None:
    weights = token_weights(term(aggregation, scope), rows, rollout_rows=rows)
    assert sum(w * row.tokens for w, row in zip(weights, rows, strict=True)) == 1


@given(batches(), st.sampled_from(AGGREGATIONS), st.data())
def test_weights_at_step_scope_do_not_depend_on_the_partition(
    rows: list[Row], aggregation: Aggregation, data: st.DataObject
) -> None:
    moved = [
        dataclasses.replace(row, rank=rank, micro_batch=(rank, data.draw(st.integers(0, 5))))
        for row in rows
        for rank in [data.draw(st.integers(0, 3))]
    ]
    assert token_weights(term(aggregation), moved) == token_weights(term(aggregation), rows)


@pytest.mark.parametrize("scope", ["micro_batch", "rank"])
def test_weights_at_narrower_scopes_do_depend_on_the_partition(scope: DenominatorScope) -> None:
    swapped = [*TOY]
    swapped[0], swapped[5] = (
        dataclasses.replace(TOY[0], rank=TOY[5].rank, micro_batch=TOY[5].micro_batch),
        dataclasses.replace(TOY[5], rank=TOY[0].rank, micro_batch=TOY[0].micro_batch),
    )
    assert token_weights(term("token_mean", scope), swapped) != token_weights(term("token_mean", scope), TOY)


@given(batches(), st.sampled_from(AGGREGATIONS), st.sampled_from(SCOPES), st.booleans(), st.data())
def test_padding_rows_never_count(
    rows: list[Row], aggregation: Aggregation, scope: DenominatorScope, count_empty: bool, data: st.DataObject
) -> None:
    loss = term(aggregation, scope, count_empty=count_empty)
    padding = data.draw(st.lists(st.integers(0, 40), max_size=4))
    filler = [Row(tokens=tokens, group="filler", rank=9, micro_batch="filler", padding=True) for tokens in padding]
    padded = token_weights(loss, rows + filler, rollout_rows=rows + filler)
    assert padded == token_weights(loss, rows, rollout_rows=rows) + [F(0)] * len(filler)


@given(batches(), st.sampled_from(AGGREGATIONS), st.sampled_from(SCOPES), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(
    rows: list[Row], aggregation: Aggregation, scope: DenominatorScope, random: object
) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis' random.Random
    loss = term(aggregation, scope)
    shuffled = [rows[place] for place in order]
    weights = token_weights(loss, rows, rollout_rows=rows)
    assert token_weights(loss, shuffled, rollout_rows=rows) == [weights[place] for place in order]


# ---- floats for the trainer


@given(batches(), st.sampled_from([name for name in AGGREGATIONS if name != "prompt_mean"]), st.booleans())
def test_the_step_factor_is_the_weight_without_the_completion_s_own_mean(
    rows: list[Row], aggregation: Aggregation, count_empty: bool
) -> None:
    assume(any(row.tokens for row in rows))
    loss = term(aggregation, count_empty=count_empty)
    factor = Normaliser.of(loss, rows).step_factor()
    for weight, row in zip(token_weights(loss, rows), rows, strict=True):
        if row.tokens:
            own_mean = row.tokens if aggregation == "sequence_mean" else 1
            assert factor / own_mean == pytest.approx(float(weight), rel=1e-15)


def test_a_step_without_tokens_has_factor_zero() -> None:
    assert Normaliser.of(term("sequence_sum"), [Row(tokens=0)]).step_factor() == 0.0


def test_a_prompt_mean_has_no_single_factor() -> None:
    with pytest.raises(ValueError, match="prompt_mean has no single factor"):
        Normaliser.of(term("prompt_mean"), TOY).step_factor()


def test_the_normaliser_counts_what_it_says() -> None:
    rows = [*TOY, Row(tokens=0, group=9), Row(tokens=50, padding=True)]
    assert Normaliser.of(term("token_mean"), rows) == Normaliser(
        aggregation="token_mean", completions=9, tokens=72, prompts=5
    )


# ---- refusals


@pytest.mark.parametrize("constant", [None, 0])
def test_a_constant_that_is_missing_is_asked_for(constant: int | None) -> None:
    loss = LossTerm(aggregation="sequence_sum_over_constant", constant=constant)
    with pytest.raises(ValueError, match="sequence_sum_over_constant needs it"):
        token_weights(loss, TOY)
    with pytest.raises(ValueError, match="sequence_sum_over_constant needs it"):
        Normaliser.of(loss, TOY).step_factor()


def test_rollout_scope_asks_for_the_rollouts() -> None:
    with pytest.raises(ValueError, match="needs all completions of the rollouts"):
        token_weights(term("token_mean", "rollout"), TOY)
