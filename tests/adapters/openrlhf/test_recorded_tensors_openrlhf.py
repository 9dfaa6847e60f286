"""What native/test_tensors_openrlhf.py left with BATCHBRIDGE_RECORD=1, held against the bars as they are now."""

from __future__ import annotations

import json
from typing import Any

import orl_proofs as proofs
import pytest


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((proofs.RECORDED / "tensors_0.11.2.json").read_text(encoding="utf-8"))
    return found


def test_the_record_of_tensor_parallelism_is_of_the_code_as_it_is_now(recorded: dict[str, Any]) -> None:
    assert recorded["code"] == proofs.code("tensors")


def test_recorded_gradients_of_a_group_lie_within_the_bar_and_the_control_far_beyond(recorded: dict[str, Any]) -> None:
    figures = recorded["figures"]
    for ranks in (2, 4):
        gradients = [one for name, one in figures.items() if name.startswith("gradient") and name.endswith(str(ranks))]
        assert len(gradients) == 2
        assert all(one["error"] <= one["bar"] < 4e-7 for one in gradients)
        assert figures[f"blind, ranks: {ranks}"] > 100
    rough = [name for name, one in figures.items() if isinstance(one, dict) and _beyond(one["in float32"])]
    assert rough == ["gradient of sequence_mean, k2 and entropy, ranks: 4"]


def _beyond(passes: dict[str, float]) -> bool:
    return passes["error"] > passes["bar"]
