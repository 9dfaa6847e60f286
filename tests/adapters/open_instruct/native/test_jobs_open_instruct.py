"""L1 and L3: whole jobs of the real learner and the real data preparation actor, wrapped, unwrapped, and resumed; and
one with Ray's actors. `oi_proofs.py` says what is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oi_proofs as proofs
import pytest
import torch

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge_on_cpu.trajectories import (
    FAULTS,
    Fault,
    adamw,
    assert_other_end,
    assert_same_end,
    reference_run,
    sgd,
)

Ran = Callable[..., Path]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.smoke), 2], ids=["one rank", "two ranks"])
def jobs(request: pytest.FixtureRequest, ran: Ran) -> tuple[int, Path]:
    return request.param, ran("jobs", request.param, "resumed.json")


def run_of(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def parameters(folder: Path, name: str, end: str) -> torch.Tensor:
    made: torch.Tensor = torch.load(folder / f"{name}.pt", weights_only=True)[end]
    return made


@pytest.mark.parametrize("name", ["enforced", "adamw", "resumed"])
def test_a_wrapped_job_is_the_plan(jobs: tuple[int, Path], name: str) -> None:
    ranks, folder = jobs
    proofs.check_plan(run_of(folder, name), ranks=ranks)


def test_a_resumed_job_ends_bit_equal_to_the_uninterrupted_one(jobs: tuple[int, Path]) -> None:
    folder = jobs[1]
    assert torch.equal(*(parameters(folder, name, "last") for name in ("adamw", "resumed")))
    assert "written by 3 ranks" in (folder / "foreign.txt").read_text(encoding="utf-8")


def test_every_learners_report_says_what_differs_from_the_run_that_it_resumes(jobs: tuple[int, Path]) -> None:
    ranks, folder = jobs
    for rank in range(ranks):
        assert proofs.CLIP_NORM in (folder / f"report-{rank}.txt").read_text(encoding="utf-8")


def test_the_unwrapped_job_does_what_its_command_line_is_read_to_do(jobs: tuple[int, Path]) -> None:
    ranks, folder = jobs
    proofs.check_behaviour(run_of(folder, "observed"), ranks)


OPTIMIZERS = {"enforced": ("sgd", sgd), "adamw": ("adamw", adamw)}
"""Of a job: its name, and what plain torch trains with."""


def plain_torch(folder: Path, name: str, fault: Fault | None = None) -> torch.Tensor:
    """Where the plan of a job leads in plain torch, float64, with the learning rates that the job had."""
    run = run_of(folder, name)
    plan = Plan(Spec.from_dict(run["spec"]), run["dataset_size"])
    rate, rates = plan.spec.carried.learning_rate, [step["learning_rate"] for step in run["steps"]]
    assert rate is not None
    return reference_run(plan, OPTIMIZERS[name][1](rate), rates=rates, fault=fault)[1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_job_ends_where_its_plan_leads_in_plain_torch(jobs: tuple[int, Path], name: str) -> None:
    ranks, folder = jobs
    start, end = (parameters(folder, name, which) for which in ("first", "last"))
    case = f"open_instruct, {OPTIMIZERS[name][0]}, ranks {ranks}: plain torch"
    assert_same_end(case, start, end, plain_torch(folder, name))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_negative_control_with_one_fault_the_plan_leads_elsewhere(ran: Ran, name: str, fault: Fault) -> None:
    folder = ran("jobs", 1, "resumed.json")
    start, end = (parameters(folder, name, which) for which in ("first", "last"))
    assert_other_end(
        f"open_instruct, {OPTIMIZERS[name][0]}: plain torch, {fault}", start, end, plain_torch(folder, name, fault)
    )


@pytest.mark.parametrize("name", ["enforced", "adamw"])
def test_one_rank_and_two_train_the_same_and_unwrapped_jobs_do_not(ran: Ran, name: str) -> None:
    one, two = (ran("jobs", ranks, "resumed.json") for ranks in (1, 2))
    proofs.check_same(run_of(one, name), run_of(two, name))
    start, end = (parameters(one, name, which) for which in ("first", "last"))
    assert_same_end(f"open_instruct, {name}: two ranks and one", start, parameters(two, name, "last"), end)
    enforced = parameters(one, "enforced", "last")
    assert_other_end("open_instruct, unwrapped", start, parameters(two, "observed", "last"), enforced)
    assert proofs.differing_steps(run_of(two, "observed"), run_of(one, "enforced")) == 6


def test_with_rays_actors_the_job_is_the_same_and_a_killed_learner_ends_it(ran: Ran) -> None:
    folder = ran("ray_job", 0, "killed.txt")
    run = run_of(folder, "ray")
    proofs.check_plan(run, ranks=2)
    proofs.check_same(run, run_of(ran("jobs", 2, "resumed.json"), "enforced"))
    said = (folder / "killed.txt").read_text(encoding="utf-8")
    proofs.check_killed(run_of(folder, "killed"), said, "PolicyTrainerRayProcess")
    # Whichever comes first: Ray's word of the learner that is gone, or the other learner's, which was waiting for it.
    assert re.search(r"died|Connection (?:reset|closed) by peer", said), said


def test_a_killed_learner_ends_the_other_with_an_error_and_leaves_whole_records(ran: Ran) -> None:
    folder = ran("killed", 0, "killed.txt")
    said = (folder / "killed.txt").read_text(encoding="utf-8")
    proofs.check_killed(run_of(folder, "killed"), said, "Connection closed by peer")
