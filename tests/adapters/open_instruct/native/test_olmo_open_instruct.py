"""L1 and L2 of grpo.py, whose learner is OLMo-core's: its gradients against the oracle, steps that something else has
a hand in, and the script itself, launched by `batchbridge run`. `oi_proofs.py` says what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oi_proofs as proofs
import pytest
import torch

from batchbridge_on_cpu.trajectories import assert_same_end

Ran = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(ran: Ran) -> Path:
    return ran("launched_olmo", 0, "initial.txt")


def left(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def parameters(folder: Path, name: str) -> torch.Tensor:
    made: torch.Tensor = torch.load(folder / f"{name}.pt", weights_only=True)
    return made


@pytest.mark.parametrize("ranks", [1, 2])
def test_its_learner_trains_the_plans_gradient_or_nothing(ran: Ran, ranks: int) -> None:
    measured = json.loads((ran("olmo", ranks, "finished") / "measured.json").read_text(encoding="utf-8"))
    assert measured["ranks"] == ranks
    proofs.check_olmo(measured)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_launched_script_is_the_plan_and_its_weights_are_there_in_time(runs: Path, ranks: int) -> None:
    said = left(runs, f"olmo-{ranks}")
    proofs.check_plan(said["run"], ranks=ranks)
    proofs.check_sent(said["run"], said["asked"], (runs / "initial.txt").read_text(encoding="utf-8"))


def test_the_launched_script_ends_alike_on_one_and_two_ranks(runs: Path) -> None:
    ends = [parameters(runs, name) for name in ("first", "olmo-2", "olmo-1")]
    assert_same_end("open_instruct, grpo.py on 1 and 2 ranks", *ends)


def test_the_command_line_s_own_meaning_is_followed(runs: Path) -> None:
    said = left(runs, "olmo_as_it_is-2")
    proofs.check_plan(said["run"], ranks=2)
    assert proofs.differing_steps(said["run"], left(runs, "olmo-2")["run"]) == 0


def test_the_script_that_nobody_follows_trains_something_else(runs: Path) -> None:
    assert proofs.differing_steps(left(runs, "olmo_observed-2")["run"], left(runs, "olmo-2")["run"]) == 6


def test_a_killed_learner_ends_the_launched_script_and_the_same_command_continues_it(runs: Path) -> None:
    killed, resumed = left(runs, "olmo_killed-2"), left(runs, "olmo_resumed-2")
    proofs.check_killed(killed["run"], killed["said"], "PolicyTrainerOLMoCoreProcess", "died", steps=(2, 3))
    proofs.check_plan(resumed["run"], ranks=2)
    proofs.check_same(resumed["run"], left(runs, "olmo-2")["run"])
    assert torch.equal(*(parameters(runs, f"{name}-2") for name in ("olmo", "olmo_resumed")))
    assert proofs.CLIP_NORM in resumed["said"], "the output says what differs"
