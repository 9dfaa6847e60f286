"""L2 of ring attention (`ds.ring_attn_size`): OpenRLHF's real `ActorPPOTrainer` under DeepSpeed's ZeRO on one ring of
two ranks, and by hand on two of them, against the float64 oracle; completions have an environment's tokens between the
policy's own.

The processes run `rings.py`; this one compares. OpenRLHF's own: slicing of rows over a ring, position numbers,
gathering of log-probabilities, loss. Replaced, exactly: the attention kernel of ring_flash_attn and flash-attn's
`all_gather`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import EVERYWHERE
from tampering import STEP, WAYS

from batchbridge.testing.oracle import gradient_bar

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.by_hand)], ids=["one ring", "two rings"])
def measured(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `rings.py` found."""
    place = tmp_path_factory.mktemp("rings")
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={request.param}", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, str(HERE / "rings.py"), str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = torch.load(place / "measured.pt", weights_only=True)
    return found


@pytest.mark.parametrize("case", EVERYWHERE)
def test_every_step_of_a_ring_has_the_oracles_gradient(measured: dict[str, Any], case: str) -> None:
    results = [result for result in measured["wrapped"] if result["case"] == case]
    assert {result["trainer"] for result in results} == {"ZeRO-2", "ZeRO-3, dynamic"}
    assert len(results) == 2 * 6
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result


def test_positive_control_openrlhf_alone_meets_the_bar_and_an_observed_ledger_has_its_weights(
    measured: dict[str, Any],
) -> None:
    for found in measured["natively"].values():
        assert found["canonical"] <= 1
        assert found["recorded"] <= 1
        assert found["untouched"], "measuring changes no bit of a gradient"
    assert measured["natively"]["ZeRO-3, dynamic"]["verified"] == "trained to its end"


def test_negative_control_ranks_that_see_their_own_part_of_a_row_alone_miss_the_bar_a_hundredfold(
    measured: dict[str, Any],
) -> None:
    assert measured["controls"]["blind"] > 100


def test_gathering_whose_gradient_is_not_added_up_over_the_ring_is_refused(measured: dict[str, Any]) -> None:
    assert "its gradient is not added up over them" in measured["controls"]["gathering"]


def test_a_ring_whose_ranks_hold_other_completions_trains_nothing(measured: dict[str, Any]) -> None:
    assert measured["other completions"] == "ranks 0 and 1 of one ring hold other completions"


@pytest.mark.parametrize("way", [way for way, (_, aspect) in WAYS.items() if aspect != "loss"])
def test_a_step_that_is_tampered_with_on_the_last_rank_of_a_ring_is_applied_on_no_rank(
    measured: dict[str, Any], way: str
) -> None:
    """What that rank measured is another thing than what the first one did, which counts as its gradient; what came to
    it otherwise than it was sent is told before, by its own name."""
    told = measured["tampered"][way]["ranks"]
    aspect = "inputs" if WAYS[way][1] == "inputs" else "gradient"
    expected = [(STEP, aspect, STEP)] * measured["ranks"]
    assert [(one["step"], one["aspect"], one["applied"]) for one in told] == expected, json.dumps(told)


def test_a_step_that_nobody_tampers_with_is_trained(measured: dict[str, Any]) -> None:
    told = measured["tampered"]["nobody"]["ranks"]
    assert [(one["detail"], one["applied"]) for one in told] == [("trained to its end", 6)] * measured["ranks"]
