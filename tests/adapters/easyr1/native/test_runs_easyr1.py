"""L1, L3, faults and resume: the stock `python -m verl.trainer.main` of EasyR1, through `batchbridge run`; and a driver
of the user's own.

CPU, gloo, scripted rollouts; three rollouts of two optimizer steps. `started.py` runs them; `proofs.py` says what is
asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import proofs
import pytest
import started
import torch
from started import Run

from batchbridge.ledger import diff
from batchbridge.testing.equivalence import LEAST_MOVEMENT
from batchbridge_on_cpu.trajectories import assert_other_end, assert_same_end

Start = Callable[[str], Run]


@pytest.fixture(scope="module")
def start(place: Path, checkout: Path) -> Start:
    """By name, once."""
    return lambda name: started.start(place, checkout, name)


@pytest.fixture(scope="module")
def two_ranks(start: Start) -> Run:
    return start("stock entry")


@pytest.fixture(scope="module")
def killed(start: Start) -> Run:
    return start("killed")


@pytest.fixture(scope="module")
def resumed(start: Start, killed: Run) -> Run:
    assert killed.code != 0
    return start("resumed")


def test_the_ledger_of_the_stock_entry_on_two_ranks_is_the_plan(two_ranks: Run) -> None:
    proofs.check_plan(two_ranks.summary(), ranks=2)
    proofs.check_whole_groups(two_ranks.summary())
    moved = two_ranks.parameters("last") - two_ranks.parameters("first")
    assert moved.norm() >= LEAST_MOVEMENT * two_ranks.parameters("first").norm()


def test_every_request_has_the_plans_sampling_seed(two_ranks: Run) -> None:
    lines = two_ranks.ledger.with_name(f"{two_ranks.name} seeds").read_text(encoding="utf-8").splitlines()
    assert sorted(map(proofs.seed_of, lines)) == proofs.planned_seeds(two_ranks.summary())


def test_negative_control_the_same_run_unwrapped_trains_other_steps_and_ends_elsewhere(
    two_ranks: Run, start: Start
) -> None:
    observed = start("stock entry observed")
    assert proofs.differing_steps(two_ranks.summary(), observed.summary()) == 6
    start, end = (two_ranks.parameters(name) for name in ("first", "last"))
    assert_other_end("easyr1, the stock entry unwrapped", start, observed.parameters("last"), end)


def test_the_unwrapped_run_on_one_device_is_as_predicted(start: Start) -> None:
    run = start("stock entry predicted").summary()
    proofs.check_prediction(run, run["argv"])


def test_one_device_that_is_handed_a_token_budget_trains_the_same_run(two_ranks: Run, start: Start) -> None:
    other = start(proofs.ON_ONE_RANK)
    proofs.check_cuts(other.summary())
    proofs.check_plan(other.summary(), ranks=1)
    proofs.check_same(two_ranks.summary(), other.summary())
    start, end = (two_ranks.parameters(name) for name in ("first", "last"))
    assert_same_end("easyr1, the stock entry: one rank and two", start, other.parameters("last"), end)


def test_a_killed_worker_ends_the_run_and_leaves_a_readable_ledger(killed: Run) -> None:
    proofs.check_killed(killed.outcome())


def test_the_resumed_run_continues_the_plan_exactly(two_ranks: Run, resumed: Run) -> None:
    proofs.check_plan(resumed.summary(), ranks=2)
    compared = diff(two_ranks.ledger, resumed.ledger, exact=True)
    assert compared.equal, compared.text()
    assert torch.equal(two_ranks.parameters("last"), resumed.parameters("last"))


def test_another_number_of_ranks_cannot_resume(start: Start, resumed: Run) -> None:
    outcome = start("resumed on one rank").outcome(before=resumed.ledger)
    proofs.check_refused(outcome, "was written by 2 ranks, this run has 1: start as many")


def test_other_code_under_the_same_version_is_refused_before_a_step(start: Start) -> None:
    outcome = start(proofs.OTHER_CODE).outcome()
    proofs.check_refused(outcome, proofs.REFUSED_CODE)


def test_a_trainer_of_the_users_own_is_wrapped_after_its_workers_started_and_unwrapped(
    two_ranks: Run, start: Start
) -> None:
    run = start(proofs.OWN_DRIVER)
    proofs.check_identical(run.summary(), two_ranks.summary())
    assert torch.equal(two_ranks.parameters("last"), run.parameters("last"))
    proofs.check_driver(run.summary()["report"])


def test_the_stock_entry_whose_ranks_share_rows_trains_the_plan_and_ends_there_too(
    two_ranks: Run, start: Start
) -> None:
    run = start(proofs.WITH_ULYSSES)
    proofs.check_plan(run.summary(), ranks=1)
    proofs.check_same(run.summary(), two_ranks.summary())
    first, last = (two_ranks.parameters(name) for name in ("first", "last"))
    assert_same_end("easyr1, the stock entry: ulysses", first, run.parameters("last"), last)
