"""L1, L3, faults and resume: the stock `python -m verl.trainer.main` of EasyR1, through `batchbridge run`.

CPU, gloo, scripted rollouts; three rollouts of two optimizer steps. Every run is a process of its own with a Ray of its
own; `proofs.py` says what is asked of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import proofs
import pytest
import torch

from batchbridge.ledger import diff, read_steps
from batchbridge_easyr1.testing.scripted import command, environment, prepare

BAR = 1e-5
THREE = "trainer.max_steps=3"


@dataclass(frozen=True)
class Run:
    """A finished run: what it said, its ledger, and its weights at the start and at the end."""

    code: int
    text: str
    ledger: Path
    weights: dict[str, dict[str, torch.Tensor]]
    argv: list[str]

    def moved(self) -> torch.Tensor:
        """All parameters at the end minus at the start, flat."""
        first, last = self.weights["first"], self.weights["last"]
        return torch.cat([(last[name] - value).flatten() for name, value in first.items()])

    def summary(self) -> dict[str, Any]:
        assert self.code == 0, self.text[-20000:]
        return proofs.summary(self.ledger)


Start = Callable[..., Run]


@pytest.fixture(scope="module")
def start(place: Path, checkout: Path) -> Start:
    """Runs the stock entry in a folder of its own, once; `options` are those of `batchbridge run`."""

    def run(name: str, ranks: int, *more: str, options: tuple[str, ...] = (), **env: str) -> Run:
        folder = place / name
        if not (folder / "policy").exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(folder, prompts=proofs.PROMPTS)
        launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger")]
        own = {
            **environment(folder, checkout, ranks=ranks),
            "BATCHBRIDGE_WEIGHTS": str(folder / "weights"),
            **env,
        }
        native = command(folder, ranks, *more)
        key = hashlib.sha256(json.dumps([ranks, more, options, env]).encode()).hexdigest()[:8]
        answer, ledger = folder / f"{key}.json", folder / f"ledger-{key}"  # a folder may see several runs
        if not answer.exists():
            for _ in range(3):  # on a busy machine Ray gives up its own start after 15 seconds
                ran = subprocess.run(
                    [*launcher, *options, "--", *native],
                    env=own,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                if ran.returncode == 0 or "The current node timed out during startup" not in ran.stdout:
                    break
            if (folder / "ledger").exists():
                shutil.copytree(folder / "ledger", ledger)
            answer.write_text(json.dumps([ran.returncode, ran.stdout]), encoding="utf-8")
            (folder / f"{key}.argv.json").write_text(json.dumps(native[1:]), encoding="utf-8")
        code, text = json.loads(answer.read_text(encoding="utf-8"))
        weights = {file.stem: torch.load(file, weights_only=True) for file in (folder / "weights").glob("*.pt")}
        return Run(code, text, ledger, weights, native[1:])

    return run


@pytest.fixture(scope="module")
def two_ranks(start: Start) -> Run:
    return start("a", 2, THREE, "trainer.save_freq=1")


@pytest.fixture(scope="module")
def observed(start: Start) -> Run:
    return start("n", 2, THREE, options=("--mode", "observe"))


@pytest.fixture(scope="module")
def killed(start: Start) -> Run:
    """Rank 1 dies after optimizer step 4, the first of the third rollout."""
    return start("d", 2, THREE, "trainer.save_freq=1", BATCHBRIDGE_KILL="1/4")


@pytest.fixture(scope="module")
def resumed(start: Start, killed: Run) -> Run:
    assert killed.code != 0
    return start("d", 2, THREE, "trainer.save_freq=1", "trainer.find_last_checkpoint=true")


def test_the_ledger_of_the_stock_entry_on_two_ranks_is_the_plan(two_ranks: Run) -> None:
    proofs.check_plan(two_ranks.summary(), ranks=2)


def test_groups_stay_whole_in_every_step(two_ranks: Run) -> None:
    proofs.check_whole_groups(two_ranks.summary())


def test_negative_control_the_same_run_unwrapped_trains_other_steps_and_ends_elsewhere(
    two_ranks: Run, observed: Run
) -> None:
    assert proofs.differing_steps(two_ranks.summary(), observed.summary()) == 6
    moved = two_ranks.moved()
    assert moved.norm() >= 0.01 * torch.cat([value.flatten() for value in two_ranks.weights["first"].values()]).norm()
    assert (observed.moved() - moved).norm() / moved.norm() > 10 * BAR


def test_the_unwrapped_run_on_one_device_is_as_predicted(start: Start) -> None:
    run = start("g", 1, THREE, "worker.actor.loss_avg_mode=seq", options=("--mode", "observe"))
    proofs.check_prediction(run.summary(), run.argv)


def test_a_killed_worker_ends_the_run_and_leaves_a_readable_ledger(killed: Run) -> None:
    assert killed.code != 0
    assert "died" in killed.text or "killed" in killed.text.lower()
    steps = read_steps(killed.ledger)
    assert [step["step"] for step in steps] == [0, 1, 2, 3, *([4] if not steps.incomplete else [])]


def test_the_resumed_run_continues_the_plan_exactly(two_ranks: Run, resumed: Run) -> None:
    proofs.check_plan(resumed.summary(), ranks=2)
    compared = diff(two_ranks.ledger, resumed.ledger, exact=True)
    assert compared.equal, compared.text()
    for name, value in two_ranks.weights["last"].items():
        assert torch.equal(value, resumed.weights["last"][name]), name


def test_another_number_of_ranks_cannot_resume(start: Start, resumed: Run) -> None:
    other = start("d", 1, THREE, "trainer.find_last_checkpoint=true")
    assert other.code != 0
    assert "was written by 2 ranks, this run has 1: start as many" in other.text


def test_one_device_with_a_token_budget_trains_the_same_run(two_ranks: Run, start: Start) -> None:
    other = start("b", 1, THREE, "worker.actor.dynamic_batching=true")
    proofs.check_same(two_ranks.summary(), other.summary())
    moved = two_ranks.moved()
    assert (other.moved() - moved).norm() / moved.norm() <= BAR
