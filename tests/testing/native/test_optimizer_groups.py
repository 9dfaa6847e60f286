"""The values of an optimizer's groups before an update: its schedule's, and nobody else's."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from batchbridge.kit.optimizer_groups import HeldGroups, applied_rate

WEIGHTS = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]


def optimizer_of(rates: tuple[float, float] = (1e-2, 1e-3)) -> tuple[Any, Any]:
    """An optimizer of two groups, and a schedule that ends in three steps."""
    groups = [{"params": [weight], "lr": rate} for weight, rate in zip(WEIGHTS, rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 3)


def test_what_a_schedule_gives_is_no_change() -> None:
    held, (optimizer, schedule) = HeldGroups(()), optimizer_of()
    for _ in range(3):
        assert held.objections(optimizer, schedule) == []
        optimizer.step()
        schedule.step()


WRITES: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "all rates": (
        lambda optimizer: [group.update(lr=1.5 * group["lr"]) for group in optimizer.param_groups],
        "learning_rate",
        "group 0 of the optimizer has learning_rate 0.015, and its schedule gives 0.01",
    ),
    "one group's rate": (
        lambda optimizer: optimizer.param_groups[1].update(lr=0.0),
        "learning_rate",
        "group 1 of the optimizer has learning_rate 0, and its schedule gives 0.001",
    ),
    "weight decay": (
        lambda optimizer: optimizer.param_groups[0].update(weight_decay=0.0),
        "weight_decay",
        "group 0 of the optimizer has weight_decay 0, and when the run began it had 0.1",
    ),
    "betas": (
        lambda optimizer: optimizer.param_groups[1].update(betas=(0.9, 0.5)),
        "optimizer_settings",
        "group 1 of the optimizer has betas 0.9 and 0.5, and when the run began it had 0.9 and 0.999",
    ),
    "epsilon": (
        lambda optimizer: optimizer.param_groups[0].update(eps=1e-4),
        "optimizer_settings",
        "group 0 of the optimizer has eps 0.0001, and when the run began it had 1e-08",
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_another_write_departs_by_its_name_unless_that_is_allowed(write: str) -> None:
    written, name, said = WRITES[write]
    for allowed in ((), (name,), tuple({"learning_rate", "weight_decay", "optimizer_settings"} - {name})):
        held, (optimizer, schedule) = HeldGroups(allowed), optimizer_of()
        assert held.objections(optimizer, schedule) == []
        written(optimizer)
        found = held.objections(optimizer, schedule)
        if name in allowed:
            assert found == []
            continue
        assert found[0].startswith(said)
        assert f'allow=("{name}",)' in found[0]
        assert found[0].aspect == name


def test_what_is_held_is_what_the_groups_had_when_the_run_began() -> None:
    held, (optimizer, schedule) = HeldGroups(()), optimizer_of()
    held.begin(optimizer)
    optimizer.param_groups[0]["weight_decay"] = 0.0  # before the first update
    assert [one.aspect for one in held.objections(optimizer, schedule)] == ["weight_decay"]


def test_a_schedule_that_moves_betas_may() -> None:
    (optimizer, _), held = optimizer_of(), HeldGroups(())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=5)
    for _ in range(4):
        assert held.objections(optimizer, schedule) == []
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["betas"][0] != 0.9
    optimizer.param_groups[0]["weight_decay"] = 0.0
    assert [one.aspect for one in held.objections(optimizer, schedule)] == ["weight_decay"]


def test_an_objection_keeps_its_aspect_on_its_way_to_other_ranks() -> None:
    held, (optimizer, schedule) = HeldGroups(()), optimizer_of()
    held.begin(optimizer)
    optimizer.param_groups[0]["eps"] = 1.0
    (found,) = pickle.loads(pickle.dumps(held.objections(optimizer, schedule)))
    assert found.aspect == "optimizer_settings"


def test_a_rate_that_no_schedule_tells_is_recorded_as_it_is() -> None:
    held, (optimizer, _) = HeldGroups(()), optimizer_of()
    for schedule in (None, object()):
        optimizer.param_groups[0]["lr"] = 7.0
        assert held.objections(optimizer, schedule) == []
    assert applied_rate(optimizer) == 7.0


def test_an_optimizer_that_works_its_rate_out_by_itself_has_none_to_hold() -> None:
    held, (optimizer, schedule) = HeldGroups(()), optimizer_of()
    optimizer.param_groups[0]["lr"] = None  # Adafactor's relative step
    assert held.objections(optimizer, schedule) == []
    assert math.isnan(applied_rate(optimizer))
