"""What agents and ring attention left with BATCHBRIDGE_RECORD=1, held against the plan and the bars as they are now.

Figures of native/test_agents_openrlhf.py and native/test_rings_openrlhf.py, runs of
by_hand/native/test_together_openrlhf.py."""

from __future__ import annotations

import json
from typing import Any

import orl_proofs as proofs
import pytest
from orl_proofs import rows_of

from batchbridge.testing.equivalence import LEAST_MOVEMENT, TRAJECTORY_BAR


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((proofs.RECORDED / "together_0.11.2.json").read_text(encoding="utf-8"))
    return found


def test_the_record_of_agents_and_rings_is_of_the_code_as_it_is_now(recorded: dict[str, Any]) -> None:
    assert recorded["code"] == proofs.code("together")


def test_recorded_gradients_lie_within_their_bars_and_their_controls_far_beyond(recorded: dict[str, Any]) -> None:
    figures = recorded["figures"]
    gradients = {name: one for name, one in figures.items() if "gradient of" in name}
    assert {name.partition(":")[0] for name in gradients} == {"agents", "rings"}
    for name, one in gradients.items():
        assert one["error"] <= one["bar"]
        assert name.startswith("rings") or one["whole"] > 100
    assert figures["agents: fit"]["with"] <= 1 < 100 < figures["agents: fit"]["whole"]
    assert figures["rings: blind, ranks: 2"] > 100


@pytest.mark.parametrize("name", ["one rank", "ring"])
def test_a_recorded_run_with_an_agent_is_the_plan_as_it_is_now(recorded: dict[str, Any], name: str) -> None:
    """A ring is one rank of the ledger."""
    run = recorded["runs"][name]
    plan = proofs.plan_of(run)
    assert [step["step"] for step in run["steps"]] == list(range(plan.total_optimizer_steps))
    for step in run["steps"]:
        assert sorted(rows_of(step, *proofs.MEMBERS)) == proofs.members_of(plan, step["step"])
        assert step["ranks"] == 1
        proofs.check_weights(step, plan.spec)
        assert step["lr_tick"] == plan.step(step["step"]).lr_tick


def test_the_recorded_ring_trained_what_one_rank_did(recorded: dict[str, Any]) -> None:
    proofs.check_same(recorded["runs"]["one rank"], recorded["runs"]["ring"])
    assert recorded["figures"]["moved"] >= LEAST_MOVEMENT
    assert recorded["figures"]["apart: ring"] <= TRAJECTORY_BAR
