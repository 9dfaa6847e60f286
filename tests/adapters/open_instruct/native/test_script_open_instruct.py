"""L1 and L3: grpo_fast.py itself, launched by `batchbridge run`, 3 rollouts and 2 passes: followed, observed, killed
and resumed. `oi_proofs.py` says what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oi_proofs as proofs
import pytest
import torch

from batchbridge_on_cpu.trajectories import assert_other_end, assert_same_end

Ran = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(ran: Ran) -> Path:
    return ran("launched", 0, "initial.txt")


def left(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def parameters(folder: Path, name: str) -> torch.Tensor:
    made: torch.Tensor = torch.load(folder / f"{name}.pt", weights_only=True)
    return made


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_launched_script_is_the_plan_and_sends_weights_in_time(runs: Path, ranks: int) -> None:
    said = left(runs, f"launched-{ranks}")
    proofs.check_plan(said["run"], ranks=ranks)
    proofs.check_sent(said["run"], said["asked"], (runs / "initial.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_launched_script_trains_what_a_driver_of_ones_own_does(runs: Path, ran: Ran, ranks: int) -> None:
    own = ran("jobs", ranks, "resumed.json")
    proofs.check_same(left(runs, f"launched-{ranks}")["run"], left(own, "enforced"))
    ends = torch.load(own / "enforced.pt", weights_only=True)
    case = f"open_instruct, the script and a driver of one's own on {ranks} ranks"
    assert_same_end(case, ends["first"], parameters(runs, f"launched-{ranks}"), ends["last"])


def test_evaluation_in_the_middle_changes_nothing(runs: Path) -> None:
    whole, evaluated = left(runs, "launched-1"), left(runs, "launched_evaluated-1")
    initial = (runs / "initial.txt").read_text(encoding="utf-8")
    proofs.check_evaluated(evaluated["run"], whole["run"], evaluated["asked"], initial)
    assert torch.equal(parameters(runs, "launched-1"), parameters(runs, "launched_evaluated-1"))


def test_the_script_that_nobody_follows_lags_and_trains_something_else(runs: Path) -> None:
    said, followed = left(runs, "launched_observed-2"), left(runs, "launched-2")
    proofs.check_behaviour(said["run"], 2)
    proofs.check_lags(proofs.lags(said["run"], said["asked"], 1))
    assert proofs.differing_steps(said["run"], followed["run"]) == 6
    with pytest.raises((AssertionError, ValueError)):
        proofs.check_sent(followed["run"], said["asked"], (runs / "initial.txt").read_text(encoding="utf-8"))
    start, observed, wanted = (parameters(runs, name) for name in ("first", "launched_observed-2", "launched-2"))
    assert_other_end("open_instruct, the script that nobody follows", start, observed, wanted)


def test_a_killed_learner_ends_the_launched_script_and_the_same_command_continues_it(runs: Path) -> None:
    killed, resumed = left(runs, "launched_killed-2"), left(runs, "launched_resumed-2")
    proofs.check_killed(killed["run"], killed["said"], "PolicyTrainerRayProcess", "died", steps=(2, 3))
    proofs.check_plan(resumed["run"], ranks=2)
    proofs.check_same(resumed["run"], left(runs, "launched-2")["run"])
    assert torch.equal(*(parameters(runs, f"{name}-2") for name in ("launched", "launched_resumed")))
    assert proofs.CLIP_NORM in resumed["said"], "the driver's output says what differs"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_command_line_s_own_meaning_is_followed_and_says_how_old_its_weights_were(runs: Path, ranks: int) -> None:
    said = left(runs, f"launched_as_it_is-{ranks}")
    proofs.check_plan(said["run"], ranks=ranks)
    proofs.check_ahead(said["run"], said["asked"], 1)
    assert proofs.differing_steps(said["run"], left(runs, f"launched-{ranks}")["run"]) == 0
    with pytest.raises(AssertionError):
        proofs.check_sent(said["run"], said["asked"], (runs / "initial.txt").read_text(encoding="utf-8"))
