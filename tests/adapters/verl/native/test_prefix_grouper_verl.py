"""`use_prefix_grouper` in verl's real engine: no worker reads it, and a wrapped step is the plan's, whatever it says.

The processes run `processes.py`; this one compares. Groups are cut over micro-batches and ranks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.testing.oracle import gradient_bar

pytestmark = pytest.mark.by_hand  # minutes


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def measured(folder: Callable[..., Path], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `processes.py` found."""
    found: dict[str, Any] = torch.load(folder(request.param, "grouper") / "measured.pt", weights_only=True)
    return {**found, "ranks": request.param}


@pytest.mark.parametrize("case", ["vanilla", "vanilla, k3", "gspo"])
def test_every_step_has_the_oracles_gradient_where_the_prefix_grouper_is_asked_for(
    measured: dict[str, Any], case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured["wrapped"] if result["case"] == case]
    assert len(results) >= 6
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    worst = max(results, key=lambda result: result["error"])
    ranks = measured["ranks"]
    record("prefix grouper asked for", f"{case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


@pytest.mark.parametrize(
    "control", ["seq-mean-token-sum-norm, null factor", "geo_mean", "seq-mean-token-sum, filler rows in B"]
)
def test_negative_control_verl_alone_misses_the_bar_tenfold(measured: dict[str, Any], control: str) -> None:
    assert measured["natively"][control] > 10


def test_verl_keeps_the_setting_and_makes_nothing_of_it(measured: dict[str, Any]) -> None:
    assert measured["read"] == {"configured": True, "imported": False, "patched": False}


def test_the_engine_hands_no_model_the_prefix_grouper() -> None:
    """A release whose engine reads it again is another one: BB-VERL-091 would be wrong, and nothing proven."""
    found = importlib.util.find_spec("verl")
    assert found is not None
    assert found.origin is not None
    workers = Path(found.origin).parent / "workers"
    files = [workers / "engine_workers.py", *sorted((workers / "engine").rglob("*.py"))]
    assert len(files) > 5
    assert [file.name for file in files if "prefix_grouper" in file.read_text(encoding="utf-8")] == []
