"""Micro-batches that are measured at once are measured as each would be alone; a mock of a loss, no trainer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from test_measuring import KL, PPO, loss_of, rows

from batchbridge.kit import joined_rows
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.meaning.spec import Objective

WEIGHTS = torch.tensor([0.25, 0.01, 7.0, 0.125])
SEQUENCE = dataclasses.replace(PPO, surrogate="gspo", ratio_level="sequence", dual_clip=None)


def cut(planned: Rows, width: int, *, whole: bool) -> Rows:
    """The rows' first tokens; whole: advantages by token."""
    shape = (len(planned.mask), width)
    advantages = planned.advantages.expand(shape).clone() if whole else planned.advantages
    named = {name: getattr(planned, name) for name in ("mask", "old", "reference")}
    short = {name: None if values is None else values[:, :width] for name, values in named.items()}
    return Rows(**short, advantages=advantages, multiplier=lambda new: torch.full_like(new, 0.5))


def measured(objective: Objective, numbers: Sequence[int], factors: Sequence[float]) -> list[list[Measured]]:
    """Micro-batches of different widths, whose losses are multiplied with a factor each; one tap for all."""
    tap = Tap(objective)
    for number, factor in zip(numbers, factors, strict=True):
        logprobs, planned = rows(objective, seed=number)
        width = 5 - number % 3
        planned = cut(planned, width, whole=number % 2 == 1)
        leaf = tap.leaf(logprobs[:, :width], planned)
        loss = loss_of(objective, leaf, planned, WEIGHTS) * factor
        tap.returned(loss)
        loss.backward()
    found = tap.take()
    values = [[Measured(None if value is None else value, 0.0)] for value in tap.values]
    return found + values


def alike(one: Measured, other: Measured) -> bool:
    def near(a: float | None, b: float | None) -> bool:
        return a is b if a is None or b is None else a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)

    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return all(near(a, b) for a, b in pairs)


@pytest.mark.parametrize("objective", [PPO, KL, SEQUENCE], ids=["ppo", "kl", "sequence"])
def test_at_once_is_as_one_by_one(objective: Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    # Factors of very different sizes: a row is held against the heaviest row of its own micro-batch.
    numbers, factors = range(4), (1.0, 1e-6, 1e4, 1.0)
    together = measured(objective, numbers, factors)
    monkeypatch.setattr(joined_rows, "AT_ONCE", 1)
    alone = measured(objective, numbers, factors)
    assert [len(part) for part in together] == [len(part) for part in alone]
    for part, wanted in zip(together, alone, strict=True):
        assert all(map(alike, part, wanted)), (part, wanted)
    assert not alike(together[0][0], together[1][0]), "negative control: another factor"


def test_they_are_measured_at_once_and_a_bound_ends_that(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    native = Tap._measure
    monkeypatch.setattr(Tap, "_measure", lambda self, seen: (asked.append(seen.parts), native(self, seen))[1])
    measured(PPO, range(4), (1.0,) * 4)
    monkeypatch.setattr(joined_rows, "AT_ONCE", 40)
    measured(PPO, range(4), (1.0,) * 4)
    assert asked == [4, 2, 2]


def test_a_micro_batch_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    found = measured(PPO, range(3), (1.0, math.nan, 1.0))
    sound = measured(PPO, range(3), (1.0, 1.0, 1.0))
    assert all(map(alike, found[0], sound[0]))
    assert all(map(alike, found[2], sound[2]))
    assert max(row.departure for row in found[1]) == math.inf


def test_a_row_without_a_weight_is_held_against_its_own_micro_batch() -> None:
    """A gradient on a row of no advantage, that is small beside a neighbouring micro-batch's."""
    tap = Tap(PPO)
    for number, factor in ((0, 1.0), (1, 1e6)):
        logprobs, planned = rows(PPO, seed=number)
        planned.advantages[1] = 0
        leaf = tap.leaf(logprobs, planned)
        added = 1e-3 * leaf[1].sum() if number == 0 else 0.0
        (loss_of(PPO, leaf, planned, torch.ones(4)) * factor + added).backward()
    first, second = tap.take()
    assert first[1].departure > first[1].tolerance
    assert second[1].departure <= second[1].tolerance
