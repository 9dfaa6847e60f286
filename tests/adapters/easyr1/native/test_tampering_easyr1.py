"""Losses of one's own, and steps that something else has a hand in: EasyR1's real `FSDPWorker.update_actor` on gloo.

The processes run `tampering.py`; `proofs.py` says what is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import proofs
import pytest
from started import measured_by

SCRIPT = Path(__file__).parent / "tampering.py"


@pytest.fixture(scope="module", params=proofs.MEASURED_ON["tampering"])
def measured(request: pytest.FixtureRequest, place: Path, checkout: Path) -> tuple[str, dict[str, Any]]:
    """What was measured on a bench."""
    return request.param, measured_by(SCRIPT, place, checkout, request.param)


def test_a_loss_of_ones_own_is_refused_unless_it_weighs_as_the_plan_does(measured: tuple[str, dict[str, Any]]) -> None:
    proofs.check_probe(measured[1])


def test_a_step_that_is_tampered_with_ends_the_run_on_every_rank_before_its_update(
    measured: tuple[str, dict[str, Any]],
) -> None:
    proofs.check_tampering(measured[1], proofs.BENCHES[measured[0]][0])


def test_a_field_that_is_not_there_ends_the_observing_and_not_the_run(measured: tuple[str, dict[str, Any]]) -> None:
    proofs.check_unreadable(measured[1])
