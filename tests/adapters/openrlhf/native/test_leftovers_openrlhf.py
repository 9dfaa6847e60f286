"""L2 of completions that fill no optimizer step, where no specification says what becomes of them: OpenRLHF's real
`ActorPPOTrainer` on one and two ranks, and a whole `PPOTrainer.fit`, against the float64 oracle.

The processes run `leftovers.py` and `leftover_fits.py`; this one compares.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.testing.oracle import gradient_bar

HERE = Path(__file__).parent


def run(script: str, ranks: int, place: Path) -> dict[Any, Any]:
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"] if ranks else []
    command = [sys.executable, *launch, str(HERE / f"{script}.py"), str(place)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[Any, Any] = torch.load(place / "measured.pt", weights_only=True)
    return found


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def trained(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[Any, Any]:
    """What `leftovers.py` found, by ZeRO stage."""
    return run("leftovers", request.param, tmp_path_factory.mktemp("leftovers"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What `leftover_fits.py` found, without Ray's processes."""
    return run("leftover_fits", 0, tmp_path_factory.mktemp("leftover_fits"))


@pytest.mark.parametrize("zero", [2, 3])
def test_leftovers_are_a_shorter_step_with_the_oracles_gradient(trained: dict[Any, Any], zero: int) -> None:
    found = trained[zero]
    assert found["own"] == "run", "the trainer's own configuration leaves them to the next rollout"
    assert found["left"] == {}
    assert found["sizes"] == [8, 4, 8, 4]
    for step in found["steps"]:
        assert step["error"] <= step["bar"], step


@pytest.mark.parametrize("zero", [2, 3])
def test_negative_control_the_step_of_two_rollouts_misses_the_bar_tenfold(trained: dict[Any, Any], zero: int) -> None:
    assert trained[zero]["crossing"] > 10


@pytest.mark.parametrize(
    ("run", "sizes"), [("one pass", [8, 4, 8, 4, 6]), ("two passes", [9, 3, 9, 3, 9, 3, 9, 3, 6, 6])]
)
def test_a_whole_run_trains_every_completion_in_its_own_rollouts_steps(
    fitted: dict[str, Any], run: str, sizes: list[int]
) -> None:
    steps = fitted[run]
    assert [step["size"] for step in steps] == sizes
    bar = gradient_bar(*(step["floor"] for step in steps))
    for step in steps:
        assert step["planned"]
        assert step["tick"]
        assert step["advantages"]
        assert step["error"] <= bar, step
        assert step["norm"] > 1e-2


def test_openrlhf_alone_takes_leftovers_along_into_the_next_rollout(fitted: dict[str, Any]) -> None:
    assert fitted["alone"] == [[0], [0, 1], [1]]
