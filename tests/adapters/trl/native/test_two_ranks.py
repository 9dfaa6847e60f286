"""L2, L3 and resume on two processes (torchrun, gloo); the processes run `two_ranks.py`, this one compares."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge import wrap
from batchbridge.ledger import diff
from batchbridge_trl.testing import flat_parameters

SCRIPT = Path(__file__).parent / "two_ranks.py"
BAR = 1e-5


def _cases() -> Any:
    """The script as a module: the cases stand in one place."""
    spec = importlib.util.spec_from_file_location("two_ranks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = os.environ.copy()
    spec.loader.exec_module(module)
    os.environ.clear()
    os.environ.update(before)
    return module


TWO_RANKS = _cases()


def torchrun(what: str, folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    ran = subprocess.run(
        [*command, str(SCRIPT), what, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert not check or ran.returncode == 0, ran.stderr[-20000:]
    return ran


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two_ranks")


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    torchrun("gradients", folder)
    result: dict[str, Any] = torch.load(folder / "measured.pt", weights_only=True)
    return result


def test_every_step_on_two_ranks_has_the_oracles_gradient(measured: dict[str, Any]) -> None:
    errors = measured["errors"]
    assert len(errors) == len(TWO_RANKS.GRADIENTS) + 1 >= 7
    for name, steps in errors.items():
        assert steps, name
        for each in steps:
            assert each["error"] <= each["bar"], (name, each)
            assert each["steps"][0] == each["steps"][1], (name, "clock")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw_torch"])
def test_one_and_two_ranks_lead_to_the_same_parameters(
    measured: dict[str, Any], folder: Path, tmp_path: Path, optimizer: str
) -> None:
    alone = TWO_RANKS.TRAJECTORIES[optimizer] | {"gradient_accumulation_steps": 4}
    built = wrap(TWO_RANKS.build(tmp_path / "out", **alone), ledger=tmp_path / "ledger")
    start = flat_parameters(built.model)
    built.train()
    moved = flat_parameters(built.model) - start
    assert moved.norm() >= 0.01 * start.norm()
    assert (measured["ends"][optimizer] - moved).norm() / moved.norm() <= BAR
    compared = diff(tmp_path / "ledger", folder / f"{optimizer}_ledger", rtol=1e-4)
    assert compared.equal, compared.text()


def test_two_ranks_resume_exactly_after_one_was_killed(measured: dict[str, Any], folder: Path) -> None:
    crashed = torchrun("crash", folder, check=False)
    assert crashed.returncode != 0
    torchrun("resume", folder)
    assert torch.equal(torch.load(folder / "resumed.pt", weights_only=True), measured["whole"])
    compared = diff(folder / "whole_ledger", folder / "killed_ledger", exact=True)
    assert compared.equal, compared.text()
