"""L1, L3, faults and resume: EasyR1's real `RayPPOTrainer.fit`, real data loader, real workers and FSDP, without Ray.

The processes run `fits.py`; `proofs.py` says what is asked. The stock entry with Ray: test_runs_easyr1.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proofs
import pytest
import torch

from batchbridge.ledger import diff, read_steps

SCRIPT = Path(__file__).parent / "fits.py"
BAR = 1e-5
Fit = Callable[..., Path]


@pytest.fixture(scope="module")
def fit(place: Path, checkout: Path) -> Fit:
    """Runs scenarios of `fits.py` on so many ranks, once; returns their folder. `ends_well`: whether they should."""

    def run(ranks: int, *names: str, ends_well: bool = True, **env: str) -> Path:
        from batchbridge_easyr1.testing.scripted import prepare

        folder = place / f"fits-{ranks}"
        if not (folder / "policy").exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(folder, prompts=proofs.PROMPTS)
        if all((folder / f"{name}.{'done' if ends_well else 'said'}").exists() for name in names):
            return folder
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
        paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
        ran = subprocess.run(
            [*command, str(SCRIPT), str(folder), *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **env},
        )
        assert (ran.returncode == 0) is ends_well, ran.stdout[-20000:]
        for name in names:
            (folder / f"{name}.said").write_text(ran.stdout, encoding="utf-8")
        return folder

    return run


def moved(folder: Path, name: str) -> torch.Tensor:
    first, last = (torch.load(folder / f"{name}-weights" / f"{end}.pt", weights_only=True) for end in ("first", "last"))
    return torch.cat([(last[key] - value).flatten() for key, value in first.items()])


def run_of(folder: Path, name: str) -> dict[str, Any]:
    return proofs.summary(folder / name)


@pytest.fixture(scope="module")
def two(fit: Fit) -> Path:
    return fit(2, "enforced", "observed", "seq")


@pytest.fixture(scope="module")
def one(fit: Fit) -> Path:
    return fit(1, "predicted", "enforced", "seq")


@pytest.fixture(scope="module")
def killed(fit: Fit) -> str:
    """Rank 1 dies after optimizer step 4, the first of the third rollout."""
    folder = fit(2, "killed", ends_well=False, BATCHBRIDGE_KILL="1/4")
    assert [step["step"] for step in read_steps(folder / "killed")][:4] == [0, 1, 2, 3]
    return (folder / "killed.said").read_text(encoding="utf-8")


def test_the_unwrapped_run_on_one_device_is_as_predicted(one: Path) -> None:
    proofs.check_prediction(run_of(one, "predicted"), proofs.argv_of("predicted", 1))


@pytest.mark.parametrize("name", ["enforced", "seq"])
def test_the_ledger_on_two_ranks_is_the_plan(two: Path, name: str) -> None:
    proofs.check_plan(run_of(two, name), ranks=2)
    proofs.check_whole_groups(run_of(two, name))


@pytest.mark.parametrize("name", ["enforced", "seq"])
def test_ranks_do_not_change_the_run(one: Path, two: Path, name: str) -> None:
    proofs.check_plan(run_of(one, name), ranks=1)
    proofs.check_same(run_of(one, name), run_of(two, name))
    assert float((moved(one, name) - moved(two, name)).norm() / moved(two, name).norm()) <= BAR


def test_negative_control_the_unwrapped_run_trains_other_steps_and_ends_elsewhere(two: Path) -> None:
    assert proofs.differing_steps(run_of(two, "enforced"), run_of(two, "observed")) == 6
    ours, theirs = moved(two, "enforced"), moved(two, "observed")
    assert float((theirs - ours).norm() / ours.norm()) > 10 * BAR


def test_a_killed_worker_ends_the_run_with_an_error(killed: str) -> None:
    assert signal.Signals.SIGKILL.name in killed or "exitcode  : -9" in killed or "exitcode: -9" in killed


def test_the_resumed_run_continues_the_plan_exactly(fit: Fit, two: Path, killed: str) -> None:
    folder = fit(2, "resumed")
    proofs.check_plan(run_of(folder, "killed"), ranks=2)
    compared = diff(two / "enforced", folder / "killed", exact=True)
    assert compared.equal, compared.text()
    ends = [torch.load(two / f"{name}-weights" / "last.pt", weights_only=True) for name in ("enforced", "resumed")]
    for key, value in ends[0].items():
        assert torch.equal(value, ends[1][key]), key


def test_another_number_of_ranks_cannot_resume(fit: Fit, place: Path, two: Path) -> None:
    fit(2, "resumed")
    source, target = place / "fits-2" / "checkpoints", place / "fits-1" / "checkpoints"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    folder = fit(1, "resumed", ends_well=False)
    said = (folder / "resumed.said").read_text(encoding="utf-8")
    assert "was written by 2 ranks, this run has 1: start as many" in said
