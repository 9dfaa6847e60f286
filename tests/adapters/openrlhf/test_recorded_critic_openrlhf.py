"""What runs of OpenRLHF's stock entry with a critic left, held against the plan as it is now.

The runs are made by hand: `nox -s openrlhf_runs`, with BATCHBRIDGE_RECORD=1.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import orl_proofs as proofs
import pytest

from batchbridge.testing.equivalence import LEAST_MOVEMENT, TRAJECTORY_BAR

RUNS = {"two ranks": 2, "one rank of the critic": 2}
"""Runs that follow a plan, and the ranks of their policies."""


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((proofs.RECORDED / "critic_0.11.2.json").read_text(encoding="utf-8"))
    return found


def test_recorded_runs_with_a_critic_are_of_the_code_as_it_is_now(recorded: dict[str, Any]) -> None:
    now = proofs.code("critic")
    assert not {name for name, digest in now.items() if recorded["code"].get(name) != digest}


@pytest.mark.parametrize(("name", "ranks"), RUNS.items())
def test_a_run_with_a_critic_trained_what_the_plan_says_now(recorded: dict[str, Any], name: str, ranks: int) -> None:
    proofs.check_critic(recorded["runs"][name], ranks=ranks)


def test_in_a_warm_up_the_policy_trained_on_no_rollout_of_it(recorded: dict[str, Any]) -> None:
    run = recorded["runs"]["warm-up"]
    proofs.check_critic(run, ranks=2)
    assert {rollout for step in run["steps"] for rollout in step["rollout"]} == {1, 2}


@pytest.mark.parametrize(("column", "value"), [("sample", 99), ("weights", 0.5)])
def test_a_recorded_row_that_is_not_the_plans_fails(recorded: dict[str, Any], column: str, value: object) -> None:
    run = copy.deepcopy(recorded["runs"]["two ranks"])
    run["steps"][2][column][3] = value
    with pytest.raises(AssertionError):
        proofs.check_critic(run, ranks=2)


def test_the_critics_ranks_and_micro_batches_did_not_change_where_either_model_ended(recorded: dict[str, Any]) -> None:
    proofs.check_same(*(recorded["runs"][name] for name in RUNS))
    figures = recorded["figures"]
    assert min(figures["moved: policy"], figures["moved: critic"]) >= LEAST_MOVEMENT
    assert max(figures["apart: policy"], figures["apart: critic"]) <= TRAJECTORY_BAR


def test_unwrapped_other_steps_were_trained_and_both_models_ended_elsewhere(recorded: dict[str, Any]) -> None:
    assert proofs.differing_steps(recorded["runs"]["two ranks"], recorded["runs"]["unwrapped"])
    figures = recorded["figures"]
    assert min(figures["apart: unwrapped policy"], figures["apart: unwrapped critic"]) > 10 * TRAJECTORY_BAR
