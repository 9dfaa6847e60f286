"""L2: a teacher whose distance is the only reward (on-policy distillation by policy gradient), by verl's own loss,
against the oracle. The teacher's log-probabilities are those of another policy; its servers are not started.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.testing.oracle import gradient_bar

pytestmark = pytest.mark.skipif(importlib.metadata.version("verl") != "0.9.1", reason="a teacher is followed on 0.9.1")


@pytest.fixture(scope="module")
def measured(folder: Callable[..., Path]) -> Callable[[int], dict[str, Any]]:
    """World size -> what `distilled.py` found."""
    return lambda ranks: torch.load(folder(ranks, "taught") / "measured.pt", weights_only=True)


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.by_hand)], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def test_every_step_with_a_teacher_has_the_oracles_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int, record: Callable[..., None]
) -> None:
    results = measured(ranks)["wrapped"]
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 1e-3, result
    assert len({result["case"] for result in results}) == 5, "every aggregation"
    worst = max(results, key=lambda result: result["error"])
    record("distillation", f"ranks: {ranks}", error=worst["error"], float32=worst["floor"])


def test_negative_control_the_advantages_of_rewards_give_another_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert min(result["plain"] for result in measured(ranks)["wrapped"]) > 10


def test_a_teacher_that_is_touched_on_its_way_to_the_loss_ends_the_step(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    found = measured(ranks)["tampering"]
    assert found["nothing"] == {"said": "", "updates": 1}
    assert re.match(
        "optimizer step 3 departs from the plan in its weights: the gradient at the log-probabilities of .* is not",
        found["the teacher"]["said"],
    )
    assert found["the teacher"]["updates"] == 0
