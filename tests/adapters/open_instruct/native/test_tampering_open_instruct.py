"""Losses of one's own, and steps that something else has a hand in: Open-Instruct's real learner on DeepSpeed.

The processes run `tampering.py`; `oi_proofs.py` says what is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oi_proofs as proofs
import pytest


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.smoke), 2], ids=["one rank", "two ranks"])
def measured(request: pytest.FixtureRequest, ran: Callable[..., Path]) -> tuple[int, dict[str, Any]]:
    """What was measured on so many ranks."""
    folder = ran("tampering", request.param, "tampering.json")
    return request.param, json.loads((folder / "tampering.json").read_text(encoding="utf-8"))


def test_a_loss_of_ones_own_is_refused(measured: tuple[int, dict[str, Any]]) -> None:
    proofs.check_probe(measured[1])


def test_a_step_that_is_tampered_with_ends_the_run_on_every_rank_before_its_update(
    measured: tuple[int, dict[str, Any]],
) -> None:
    proofs.check_tampering(measured[1], measured[0])


def test_an_optimizer_of_other_weights_ends_the_job_before_its_first_update(
    measured: tuple[int, dict[str, Any]],
) -> None:
    proofs.check_strange(measured[1], measured[0])


def test_a_stock_job_passes_in_mode_verify_and_stops_where_its_inputs_are_touched(
    measured: tuple[int, dict[str, Any]],
) -> None:
    proofs.check_stock(measured[1], measured[0])


def test_a_function_of_ours_that_fails_ends_the_observing_and_not_the_run(
    measured: tuple[int, dict[str, Any]],
) -> None:
    proofs.check_unreadable(measured[1])
