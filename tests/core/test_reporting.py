"""Numbers of optimizer steps for a trainer's own loggers: of all ranks, kept on the first, and told once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from batchbridge.errors import BatchDrift
from batchbridge.kit.reporting import PaddingTokens, StepNumbers, logged
from batchbridge.kit.workers import Orders, Recorder, TrainedRow
from batchbridge.ledger.numbers import drift_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology

SPEC = Spec(
    topology=Topology(world_size=2),
    rollout=Rollout(prompts_per_rollout=2, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=4),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    order=Order(prompt_shuffle="none", last_rollout="drop"),
    horizon=Horizon(optimizer_steps=4),
)
TOKENS = (3, 0, 2, 5)
NO_FACTS = dict.fromkeys(("prompt_fingerprint", "completion_fingerprint", "reward", "advantage", "old_logprobs"))


def rows(weights: Sequence[float | None] = (0.1, 0.1, 0.1, 0.1)) -> list[TrainedRow]:
    """Step 0, all of it."""
    members = Plan(SPEC, 8).step(0).members
    return [
        TrainedRow(member.rollout, member.prompt, place // 2, member.sample, tokens, place, weight=weight)
        for place, (member, tokens, weight) in enumerate(zip(members, TOKENS, weights, strict=True))
    ]


def recorder(rank: int, others: Sequence[tuple[Any, ...]] = (), **orders: Any) -> Recorder:
    """Of one rank; `others`: what the other rank brings to a gathering."""
    told: dict[str, Any] = {"planned": True, "mode": "enforce", "ledger": None, "report": True, **orders}
    made = Orders(spec=SPEC, dataset_size=8, framework_version="1", start_id="a", **told)
    return Recorder("toy", made, rank=rank, world_size=2, gather=lambda mine: [*mine, *others])


def write(target: Recorder, mine: Sequence[TrainedRow]) -> list[StepNumbers]:
    facts = [NO_FACTS] * len(mine)
    target.write(0, mine, facts, normaliser=None, learning_rate=1.0, gradient_norm=None, skipped=False)
    return target.taken()


def told(some: Sequence[TrainedRow]) -> list[tuple[Any, ...]]:
    return [(row.rollout, row.prompt, row.tokens, row.applied_weight) for row in some]


def test_a_steps_numbers_are_of_all_ranks_and_kept_on_the_first() -> None:
    every = rows()
    first = recorder(0, [*told(every[2:]), tuple(PaddingTokens(30, 60))])
    first.padding = lambda: PaddingTokens(20, 40)
    (numbers,) = write(first, every[:2])
    assert numbers == StepNumbers(0, 4, 10, 0.0, 50, 100)
    assert logged([numbers])["batchbridge/padding_saved"] == 0.5
    assert first.taken() == []
    assert write(recorder(1, told(every[:2])), every[2:]) == []


def test_nothing_is_gathered_or_kept_that_nobody_asks_for() -> None:
    def gather(mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        raise AssertionError("a gathering costs every rank a message")

    quiet = recorder(0, report=False)
    quiet._gather = gather
    assert write(quiet, rows()) == []


def test_a_step_that_departs_is_kept_although_it_is_never_written() -> None:
    wrong = recorder(0)
    with pytest.raises(BatchDrift):
        wrong.compare(0, rows((0.2, 0.1, 0.1, 0.1)))
    (numbers,) = wrong.taken()
    assert (numbers.completions, numbers.response_tokens, numbers.drift) == (4, 10, 1.0)
    assert (numbers.computed, numbers.unsaved) == (None, None)


@pytest.mark.parametrize(
    ("weights", "drift"),
    [
        ((0.1, 7.0, 0.1, 0.1), 0.0),  # it has no token
        ((0.1, 0.1, 0.2, 0.15), 1.0),
        ((0.1, 0.1, None, 0.11), pytest.approx(0.1)),
        ((0.1, 0.1, math.nan, 0.1), math.inf),
        ((None, 0.0, None, None), None),
    ],
)
def test_drift_is_the_largest_relative_deviation_of_a_weight_that_shows(
    weights: tuple[float | None, ...], drift: float | None
) -> None:
    assert drift_of(SPEC.loss.policy, told(rows(weights))) == drift


def test_a_term_at_another_scope_is_held_against_the_optimizer_steps() -> None:
    for scope in ("rollout", "micro_batch", "rank"):
        term = LossTerm(aggregation="token_mean", denominator_scope=scope)  # type: ignore[arg-type]  # three of its values
        assert drift_of(term, told(rows())) == 0.0


def test_a_line_of_several_steps_has_their_mean_their_largest_drift_and_all_their_padding() -> None:
    steps = [StepNumbers(0, 4, 10, 0.5, 60, 100), StepNumbers(1, 2, 4, 0.25, 40, 50), StepNumbers(2, 3, 4, None)]
    assert logged(steps) == {
        "batchbridge/completions": 3.0,
        "batchbridge/response_tokens": 6.0,
        "batchbridge/drift": 0.5,
        "batchbridge/padding_saved": pytest.approx(1 / 3),
    }
    assert set(logged(steps[2:])) == {"batchbridge/completions", "batchbridge/response_tokens"}
    assert logged([]) == {}
