"""The base of what measures a model's steps: clipping and the gradients, and rows by their places."""

from __future__ import annotations

import pytest
import torch

from batchbridge.kit.gradient_origins import PlainOrigin
from batchbridge.kit.gradient_sketches import Sketches
from batchbridge.kit.measuring import Measured
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.step_probe import StepProbe
from batchbridge.kit.workers import FILLER_GRADIENT, TrainedRow, read_places
from batchbridge.meaning.spec import Objective


def probe_of(weight: torch.nn.Parameter, observation: Observation | None = None) -> StepProbe:
    made = StepProbe(Objective(surrogate="ppo", clip_low=0.2, clip_high=0.2), Patches(observation))
    made.watch_gradients(lambda: Sketches(PlainOrigin(torch.nn.ParameterList([weight]))))
    return made


@pytest.mark.parametrize(("limit", "changed"), [(1.0, 1.0), (1.0, 3.0), (float("inf"), 1.0), (1e9, 0.5)])
def test_what_clipping_did_is_no_change_of_a_gradient_and_all_else_is(limit: float, changed: float) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    probe = probe_of(weight)
    (5 * weight).sum().backward()
    assert weight.grad is not None
    probe.clipped(torch.nn.utils.clip_grad_norm_([weight], limit), limit)
    weight.grad.mul_(changed)
    assert bool(probe.gradient_objections(1.0)) == (changed != 1.0)
    assert probe.gradient_ratio == pytest.approx(changed, rel=1e-5)
    weight.grad = None
    (5 * weight).sum().backward()
    assert probe.gradient_objections(1.0) == []  # the next step was not clipped


def test_a_run_that_is_observed_alone_compares_no_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    probe = probe_of(weight, Observation("observe"))
    weight.sum().backward()
    assert probe.gradient_objections(7.0) == []
    assert not weight._backward_hooks  # type: ignore[attr-defined]


def row_at(index: int) -> TrainedRow:
    return TrainedRow(0, index, index, 0, 3, index)


def test_rows_are_read_by_their_places_and_a_filler_must_have_no_gradient() -> None:
    rows = {0: row_at(0), 1: None, 2: row_at(2)}
    seen = [[Measured(0.5, 0.0)], [Measured(0.0, 0.0), Measured(0.25, 0.0)]]
    assert read_places(rows, [[2], [1, 0]], seen) == []
    assert [row.weight for row in rows.values() if row is not None] == [0.25, 0.5]
    assert read_places(rows, [[2], [1, 0]], [seen[0], [Measured(1.0, 1.0), seen[1][1]]]) == [FILLER_GRADIENT]


@pytest.mark.parametrize("parts", [[[0], [1]], [[0], [1, 2, 3]], [[0], [1, 1]], [[]]])
def test_other_places_than_the_steps_are_not_read(parts: list[list[int]]) -> None:
    rows: dict[int, TrainedRow | None] = {place: row_at(place) for place in range(3)}
    seen = [[Measured(0.5, 0.0) for _ in part] for part in parts]
    with pytest.raises(ValueError, match="other rows"):
        read_places(rows, parts, seen)
