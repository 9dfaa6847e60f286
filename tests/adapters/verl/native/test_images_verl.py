"""L2 of prompts with images: verl's real engine on gloo, with a tiny Qwen2-VL and a tiny Qwen2.5-VL whose vision towers
are trained, too, against the float64 oracle, on one and two ranks. A row's image tensors and position numbers are those
that verl's own agent loop makes.

The processes run `processes.py`; this one compares.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.testing.oracle import gradient_bar

VERSION = importlib.metadata.version("verl")
pytestmark = pytest.mark.skipif(VERSION != "0.9.1", reason="images are followed in verl 0.9.1")


LAYOUTS = {
    "two ranks": (2, "Qwen2.5-VL"),
    "packed on one rank": (1, "Qwen2-VL", "packed"),
    "one rank": (1, "Qwen2-VL"),
    "packed on two ranks": (2, "Qwen2.5-VL", "packed"),
}
"""Processes, and what `processes.py` is told: rows padded, or laid end to end (`use_remove_padding`, verl's default)
with a stand-in for flash-attn's kernel."""
BY_HAND = ("one rank", "packed on two ranks")
"""Minutes each."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.by_hand] * (name in BY_HAND)) for name in LAYOUTS])
def layout(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def measured(folder: Callable[..., Path], layout: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder(*LAYOUTS[layout]) / "measured.pt", weights_only=True)
    return found


@pytest.mark.parametrize("case", ["vanilla", "vanilla, k3"])
def test_every_step_of_prompts_with_images_has_the_oracles_gradient(
    measured: dict[str, Any], layout: str, case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured["wrapped"] if result["case"] == case]
    assert len(results) == 2 * 3 * (4 if layout.endswith("one rank") else 3)  # aggregations, steps, splits
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1
    worst = max(results, key=lambda result: result["error"])
    record("images", f"{case}, {layout}", error=worst["error"], float32=worst["floor"])


def test_negative_control_an_oracle_that_is_shown_other_pictures_is_missed_tenfold(measured: dict[str, Any]) -> None:
    assert measured["other pictures"] > 10


def test_a_step_with_images_whose_first_micro_batch_is_lost_ends_before_its_update(measured: dict[str, Any]) -> None:
    (said,) = measured["drifts"]
    assert said.startswith("optimizer step 3 departs from the plan in its gradient: ")


def test_what_verl_itself_ends_with_is_what_its_page_says(measured: dict[str, Any]) -> None:
    """docs/verl.md#images: neither is BatchBridge's to mend."""
    assert measured["alone"]["no image"].endswith("'BaseModelOutputWithPooling' object has no attribute 'mean'")
    assert "split_with_sizes expects split_sizes to sum exactly to" in measured["alone"]["one length"]
