"""Completions that ranks hold in their replay buffers against the plan's: without OpenRLHF."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from batchbridge import BatchDrift, CannotAttach, Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge_openrlhf.membership import by_row, one_rollout, replayed
from batchbridge_openrlhf.turns import ReplayedCompletion

PLAN = Plan(
    Spec(
        topology=Topology(world_size=2),
        rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=8),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1, lr_tick="rollout"),
        order=Order(seed=7, last_rollout="drop"),
    ),
    10,
)

Held = list[list[ReplayedCompletion]]


def held() -> Held:
    """The first rollout's completions, on two ranks in turns."""
    rows = [
        ReplayedCompletion(0, prompt, position, sample, prompt_tokens=3, all_tokens=9, tokens=6, index=0)
        for position, prompt in enumerate(PLAN.rollout(0).prompts)
        for sample in range(2)
    ]
    return [rows[::2], rows[1::2]]


def changed(ranks: Held, **fields: object) -> Held:
    """The same with another first completion on the second rank."""
    first, second = ranks
    return [first, [dataclasses.replace(second[0], **fields), *second[1:]]]  # type: ignore[arg-type]


def test_the_plans_completions_are_found_on_their_ranks() -> None:
    found = by_row(PLAN, 0, held())
    assert len(found) == 8
    assert {row: rank for row, (rank, _) in found.items()} == {
        (place, sample): sample for place in range(4) for sample in range(2)
    }


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (lambda ranks: [ranks[0], ranks[1][1:]], r"came without \(position, prompt, sample\) \[\(0, \d, 1\)\]"),
        (lambda ranks: [[*ranks[0], ranks[0][0]], ranks[1]], r"and with \[\(0, \d, 0\)\] that it does not have"),
        (lambda ranks: changed(ranks, sample=5), r"and with \[\(0, \d, 5\)\]"),
        (lambda ranks: changed(ranks, position=3), "came without"),
        (lambda ranks: changed(ranks, prompt=PLAN.rollout(1).prompts[0]), "came without"),
        (lambda ranks: changed(ranks, answered=False), "with other tokens or images, or another loss mask"),
    ],
    ids=["one missing", "one twice", "another sample", "another place", "another prompt", "not as answered"],
)
def test_what_is_not_exactly_the_plans_ends_the_run(tamper: Callable[[Held], Held], why: str) -> None:
    with pytest.raises(BatchDrift, match=why):
        by_row(PLAN, 0, tamper(held()))


def test_buffers_hold_one_rollout_and_not_none() -> None:
    assert one_rollout(held(), 3) == 0
    with pytest.raises(BatchDrift, match="no rank holds a completion"):
        one_rollout([[], []], 3)
    with pytest.raises(CannotAttach, match=r"hold rollouts \[0, 4\]"):
        one_rollout(changed(held(), rollout=4), 3)


def test_an_experience_without_an_identity_is_refused() -> None:
    with pytest.raises(CannotAttach, match="without BatchBridge's identity"):
        replayed(SimpleNamespace(info={}), 0)
