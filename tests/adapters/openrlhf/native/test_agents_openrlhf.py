"""L2 of agents (`train.agent_func_path`): completions in which an environment's tokens stand, which the agent's action
mask leaves out, against the float64 oracle: OpenRLHF's `ActorPPOTrainer` on one and two ranks, and a whole
`PPOTrainer.fit` with OpenRLHF's own agents and their loop over turns.

The processes run `agent_masks.py` and `agent_fits.py`; this one compares.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_masks import OBJECTIVES, TRAINERS

from batchbridge.testing.oracle import gradient_bar

HERE = Path(__file__).parent
WAYS = ("the environment's tokens are trained", "a token is left out", "other words")
"""What is done to a rollout on its way; `agent_fits` is not imported here: it takes the place of Ray's functions."""


def run(script: str, ranks: int, place: Path) -> dict[str, Any]:
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"] if ranks else []
    command = [sys.executable, *launch, str(HERE / f"{script}.py"), str(place)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = torch.load(place / "measured.pt", weights_only=True)
    return found


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.by_hand), 2], ids=["one rank", "two ranks"])
def measured(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `agent_masks.py` found."""
    return run("agent_masks", request.param, tmp_path_factory.mktemp("agent_masks"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `agent_fits.py` found, without Ray's processes."""
    return run("agent_fits", 0, tmp_path_factory.mktemp("agent_fits"))


@pytest.mark.parametrize("case", OBJECTIVES)
def test_every_step_has_the_gradient_of_the_tokens_that_the_mask_trains(measured: dict[str, Any], case: str) -> None:
    results = [result for result in measured["wrapped"] if result["case"] == case]
    assert len(results) == 6 * len(TRAINERS)
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result


def test_negative_control_to_train_the_environments_tokens_misses_the_bar_a_hundredfold(
    measured: dict[str, Any], fitted: dict[str, Any]
) -> None:
    assert min(result["whole"] for result in measured["wrapped"]) > 100
    assert min(step["whole"] for step in fitted["steps"]) > 100


def test_a_whole_run_with_openrlhfs_agents_trains_its_plan_with_the_oracles_gradient(fitted: dict[str, Any]) -> None:
    assert fitted["executor"][:3] == ["agent_module", "openrlhf.utils.agent", "openrlhf.utils.agent"]
    assert len(fitted["steps"]) == 6
    for step in fitted["steps"]:
        assert step["planned"]
        assert set(step["turns"]) == {1, 2}, "the environment speaks between two turns in some completions"
        assert step["completions"], "the environment's words stand in what is trained on"
        assert step["tokens"], "and are not counted"
        assert step["with"] <= 1, step


def test_every_turn_is_asked_for_with_its_completions_seed(fitted: dict[str, Any]) -> None:
    assert fitted["seeds"]


def test_an_agents_scores_decide_which_prompts_a_filter_keeps(fitted: dict[str, Any]) -> None:
    found = fitted["filtered"]
    assert found["trained"] == found["kept"]
    assert found["trained"] != found["unfiltered"]


@pytest.mark.parametrize("way", WAYS)
def test_a_rollout_that_is_not_as_the_agent_answered_is_not_trained(fitted: dict[str, Any], way: str) -> None:
    told = fitted["tampered"][way]
    assert (told["step"], told["aspect"], told["updates"]) == (2, "membership", 2), "the second rollout's first step"
    assert "than the engine's answers have" in told["said"]


def test_the_same_run_is_trained_to_its_end_where_nobody_tampers(fitted: dict[str, Any]) -> None:
    told = fitted["tampered"]["nobody"]
    assert (told["aspect"], told["updates"]) == ("trained to its end", 6)
