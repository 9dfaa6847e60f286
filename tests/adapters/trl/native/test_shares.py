"""How a step is cut over two processes (torchrun, gloo), which run `shares_run.py`, and the seconds that each computes.

What a slow rank shows on a GPU, whose clock is made of events, was not run here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge import wrap
from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import summarise
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.compute_time import Clock
from batchbridge_trl.finished import FOLDER
from batchbridge_trl.testing import flat_parameters

SCRIPT = Path(__file__).parent / "shares_run.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shares")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*command, str(made)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    return made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def test_ranks_that_cut_a_step_each_in_its_own_way_train_nothing(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "optimizer step 0" in rank["own_cut"]["raised"], rank["own_cut"]
        assert rank["own_cut"]["untouched"]


def test_a_rank_that_is_made_slow_is_named_in_the_ledger(folder: Path, ranks: list[dict[str, Any]]) -> None:
    found = summarise(Ledger(folder / "whole-ledger"))
    assert found.straggler is not None
    assert (found.straggler[0], found.straggler[1].slowest, found.timed) == (1, 6, 6)
    assert found.ratios / found.timed > 1.2
    for step in read_steps(folder / "whole-ledger"):
        fast, slow = step["compute_seconds"]
        assert slow > 1.5 * fast > 0.0, "the fast rank's clock stood still while it waited"


def test_two_ranks_resume_with_the_cuts_of_their_checkpoint(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        whole, again = rank["resumed"]["shares"][:6], rank["resumed"]["shares"][6:]
        assert again == whole[3:]
        assert rank["resumed"]["equal"]
    assert ranks[0]["resumed"]["shares"] == ranks[1]["resumed"]["shares"]


# ---- one process

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_iterations": 4,
    "prompts": 8,
    "max_steps": 8,
    "save_strategy": "steps",
    "save_steps": 3,
}


@pytest.mark.parametrize("had", ["no shares", "a fitted cost"])
def test_a_checkpoint_of_an_earlier_version_resumes(trainer: Callable[..., Any], tmp_path: Path, had: str) -> None:
    """Checkpoints had no shares at first, and later a cost that the run had fitted beside them."""
    whole = wrap(trainer("whole", **RUN), tokens_per_device=90)
    whole.train()
    file = tmp_path / "whole" / "checkpoint-3" / FOLDER / "rank-00000.pt"
    older = torch.load(file, weights_only=True)
    assert set(older["shares"]["steps"]) == {3}, "the rollout's last pass"
    shares = older.pop("shares")
    if had != "no shares":
        older["shares"] = {**shares, "pace": {"cost": None, "steps": 3}}
    torch.save(older, file)
    again = wrap(trainer("again", **RUN), tokens_per_device=90)
    again.train(resume_from_checkpoint=str(file.parent.parent))
    start, end = flat_parameters(tiny_policy()), flat_parameters(whole.model)
    assert (flat_parameters(again.model) - end).norm() <= 1e-5 * (end - start).norm()


def test_on_a_gpu_a_moment_is_an_event_of_the_stream_and_none_is_waited_for_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mock of torch's events: that they are used so. What a GPU makes of them was not run."""
    waited: list[int] = []

    class Event:
        count = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.count += 1
            self.at = 1000 * Event.count  # milliseconds

        def synchronize(self) -> None:
            waited.append(self.at)

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = Clock(torch.device("cuda"))
    clock.go()
    clock.standing(lambda: None)()
    clock.stop()
    assert waited == []
    assert clock.seconds() == 2.0
    assert waited == [2000, 4000]


def test_a_clock_stands_still_while_a_collective_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(Clock, "moment", staticmethod(lambda: now[0]))
    clock = Clock(torch.device("cpu"))

    def passes(seconds: float) -> float:
        now[0] += seconds
        return seconds

    clock.go()
    passes(1.0)
    assert clock.standing(passes)(10.0) == 10.0
    passes(2.0)
    clock.look(None)
    passes(4.0)  # DDP waits behind the last gradient
    clock.stop()
    assert clock.seconds() == 3.0
