"""L2: gradients of EasyR1's real `FSDPWorker.update_actor` (FSDP, gloo) against the float64 oracle.

The processes run `gradients.py`; `proofs.py` says what is asked. Ragged lengths, a completion whose loss mask is all
zero, filler rows, a short step, fixed and dynamic micro-batches; rows whose tokens two ranks share (Ulysses).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import proofs
import pytest
from started import measured_by

SCRIPT = Path(__file__).parent / "gradients.py"


BENCHES = [
    pytest.param(bench, marks=pytest.mark.smoke) if bench == proofs.SMOKE else bench
    for bench in proofs.MEASURED_ON["gradients"]
]


@pytest.fixture(scope="module", params=BENCHES)
def measured(request: pytest.FixtureRequest, place: Path, checkout: Path) -> tuple[str, dict[str, Any]]:
    """What was measured on a bench."""
    return request.param, measured_by(SCRIPT, place, checkout, request.param)


def test_every_step_has_the_oracles_gradient(measured: tuple[str, dict[str, Any]]) -> None:
    proofs.check_gradients(measured[1], measured[0])


def test_negative_control_seq_and_floors_alone_miss_the_bar_tenfold(measured: tuple[str, dict[str, Any]]) -> None:
    proofs.check_controls(measured[1], measured[0])


def test_what_is_no_step_of_the_plan_is_refused_before_the_update(measured: tuple[str, dict[str, Any]]) -> None:
    proofs.check_edges(measured[1])
