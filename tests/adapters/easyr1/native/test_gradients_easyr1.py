"""L2: gradients of EasyR1's real `FSDPWorker.update_actor` (FSDP, gloo) against the float64 oracle.

The processes run `gradients.py`; `proofs.py` says what is asked. Ragged lengths, a completion whose loss mask is all
zero, filler rows, a short step, fixed and dynamic micro-batches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import proofs
import pytest

SCRIPT = Path(__file__).parent / "gradients.py"


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def measured(request: pytest.FixtureRequest, place: Path, checkout: Path) -> tuple[int, dict[str, Any]]:
    """What was measured on so many ranks."""
    from batchbridge_easyr1.testing.scripted import prepare

    ranks: int = request.param
    folder = place / f"gradients-{ranks}"
    if not (folder / "measured.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
        paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
        ran = subprocess.run(
            [*command, str(SCRIPT), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert ran.returncode == 0, ran.stderr[-20000:]
    return ranks, json.loads((folder / "measured.json").read_text(encoding="utf-8"))


def test_every_step_has_the_oracles_gradient(measured: tuple[int, dict[str, Any]]) -> None:
    proofs.check_gradients(measured[1], measured[0])


def test_negative_control_seq_and_floors_alone_miss_the_bar_tenfold(measured: tuple[int, dict[str, Any]]) -> None:
    proofs.check_controls(measured[1], measured[0])


def test_what_is_no_step_of_the_plan_is_refused_before_the_update(measured: tuple[int, dict[str, Any]]) -> None:
    proofs.check_edges(measured[1])
