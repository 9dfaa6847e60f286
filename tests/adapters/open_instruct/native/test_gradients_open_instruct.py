"""L2: gradients of Open-Instruct's real learner (DeepSpeed, gloo) against the float64 oracle.

The processes run `gradients.py`; `oi_proofs.py` says what is asked. Ragged lengths, a completion whose loss mask is all
zero, packed rows that the ranks do not divide, two passes over each rollout, four stages of ZeRO.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oi_proofs as proofs
import pytest


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def measured(request: pytest.FixtureRequest, ran: Callable[..., Path]) -> dict[str, Any]:
    """What was measured on so many ranks."""
    folder = ran("gradients", request.param, "finished")
    found: dict[str, Any] = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    return found


def test_every_step_has_the_oracles_gradient(measured: dict[str, Any]) -> None:
    proofs.check_gradients(measured)


def test_where_rewards_or_timing_decide_every_step_has_the_oracles_gradient_of_what_is_left(
    measured: dict[str, Any],
) -> None:
    proofs.check_taken(measured)


def test_what_later_rollouts_are_scored_by_may_change_while_the_run_goes_on(measured: dict[str, Any]) -> None:
    proofs.check_rubrics(measured)


def test_negative_control_dropped_rows_and_denominators_of_one_rank_miss_the_bar_tenfold(
    measured: dict[str, Any],
) -> None:
    proofs.check_controls(measured)


def test_what_is_no_step_of_the_plan_is_refused_before_the_update(measured: dict[str, Any]) -> None:
    proofs.check_edges(measured)
