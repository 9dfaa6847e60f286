"""What native/test_images_openrlhf.py left with BATCHBRIDGE_RECORD=1, held against the bars as they are now."""

from __future__ import annotations

import json
from typing import Any

import orl_proofs as proofs
import pytest


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((proofs.RECORDED / "images_0.11.2.json").read_text(encoding="utf-8"))
    return found


def test_the_record_of_images_is_of_the_code_as_it_is_now(recorded: dict[str, Any]) -> None:
    assert recorded["code"] == proofs.code("images")


def test_recorded_gradients_lie_within_the_bar_and_with_other_images_far_beyond(recorded: dict[str, Any]) -> None:
    figures = recorded["figures"]
    assert {
        "ZeRO-3, ranks: 2",
        "frozen, ZeRO-3, ranks: 2",
        "ZeRO-3, ranks: 1",
        "some without, ranks: 1",
    } <= figures.keys()
    assert all(one["of the bar"] <= 1 for one in figures.values())
    assert all(one["with other images"] > 10 for one in figures.values())
