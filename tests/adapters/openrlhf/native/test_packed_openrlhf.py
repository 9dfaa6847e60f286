"""L2 of packed samples (`ds.packing_samples`, which dynamic batches turn on): OpenRLHF's real `ActorPPOTrainer` under
DeepSpeed's ZeRO on one and two ranks, and a whole `PPOTrainer.fit`, against the float64 oracle.

The processes run `packed.py` and `packed_fits.py`; this one compares. Attention is torch's own (sdpa); flash attention,
which OpenRLHF's command line puts in its place, needs a GPU.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import CASES
from tampering import STEP, WAYS

from batchbridge.ledger import diff
from batchbridge.testing.oracle import gradient_bar
from batchbridge_on_cpu.trajectories import assert_same_end

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Script, and processes -> the folder where they left what they measured; each runs when it is first asked for."""

    @functools.cache
    def started(script: str, ranks: int) -> tuple[Path, subprocess.CompletedProcess[str]]:
        place = tmp_path_factory.mktemp(f"{script}_{ranks}")
        launch = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"] if ranks else []
        command = [sys.executable, *launch, str(HERE / f"{script}.py"), str(place)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return place, subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def run(script: str, ranks: int) -> Path:
        place, ran = started(script, ranks)
        assert ran.returncode == 0, ran.stderr[-20000:]
        return place

    return run


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.by_hand), 2], ids=["one rank", "two ranks"])
def measured(run: Callable[..., Path], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `packed.py` found."""
    found: dict[str, Any] = torch.load(run("packed", request.param) / "measured.pt", weights_only=True)
    return {**found, "ranks": request.param}


@pytest.fixture
def fitted(run: Callable[..., Path]) -> dict[str, Any]:
    """What `packed_fits.py` found, without Ray's processes."""
    found: dict[str, Any] = torch.load(run("packed_fits", 0) / "measured.pt", weights_only=True)
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_step_of_packed_samples_has_the_oracles_gradient(
    measured: dict[str, Any], case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured["wrapped"] if result["case"] == case]
    assert len(results) >= 2 * 6
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    worst = max(results, key=lambda result: float(result["error"]))
    name = f"packed: gradient of {case}, ranks: {measured['ranks']}"
    record(name, error=worst["error"], float32=worst["floor"], of_the_bar=worst["error"] / bar)


def test_the_policy_is_run_on_one_row_of_all_completions(measured: dict[str, Any], fitted: dict[str, Any]) -> None:
    assert measured["packs"] == [1]
    passes = fitted["passes"]
    assert {training for training, _, _ in passes["packed"]} == {True, False}
    assert {rows for _, rows, _ in passes["packed"]} == {1}
    tokens = {name: sum(rows * width for _, rows, width in passes[name]) for name in passes}
    assert tokens["packed"] < 0.9 * tokens["padded"], tokens


def test_negative_control_completions_that_see_each_other_miss_the_bar_tenfold(measured: dict[str, Any]) -> None:
    assert measured["looking across"] > 10


def test_negative_control_dynamic_batches_alone_miss_the_bar_tenfold(measured: dict[str, Any]) -> None:
    assert measured["natively"]["ZeRO-1, dynamic"]["canonical"] > 10


@pytest.mark.parametrize("trainer", ["ZeRO-2", "ZeRO-3, dynamic"])
def test_positive_control_openrlhf_alone_meets_the_bar_where_it_loses_nothing(
    measured: dict[str, Any], trainer: str
) -> None:
    assert measured["natively"][trainer]["canonical"] <= 1


@pytest.mark.parametrize("trainer", ["ZeRO-1, dynamic", "ZeRO-2", "ZeRO-3, dynamic"])
def test_the_ledger_of_an_observed_run_has_the_weights_that_were_really_applied(
    measured: dict[str, Any], trainer: str
) -> None:
    found = measured["natively"][trainer]
    assert found["recorded"] <= 1
    assert found["untouched"], "measuring changes no bit of a gradient"


@pytest.mark.parametrize("way", WAYS)
def test_a_step_of_packed_samples_that_is_tampered_with_is_applied_on_no_rank(
    measured: dict[str, Any], way: str
) -> None:
    told = measured["tampered"]["enforce"][way]["ranks"]
    expected = [(STEP, WAYS[way][1], STEP)] * measured["ranks"]
    assert [(one["step"], one["aspect"], one["applied"]) for one in told] == expected, told


def test_a_step_of_packed_samples_that_nobody_tampers_with_is_trained(measured: dict[str, Any]) -> None:
    told = measured["tampered"]["enforce"]["nobody"]["ranks"]
    assert [(one["detail"], one["applied"]) for one in told] == [("trained to its end", 6)] * measured["ranks"]


def test_a_whole_run_of_packed_samples_trains_its_plan_with_the_oracles_gradient(
    fitted: dict[str, Any], record: Callable[..., None]
) -> None:
    steps = fitted["steps"]
    worst = max(steps, key=lambda step: float(step["error"]))
    record("packed: fit", error=worst["error"], float32=worst["floor"])
    assert [step["size"] for step in steps] == [6] * 6
    bar = gradient_bar(*(step["floor"] for step in steps))
    for step in steps:
        assert step["planned"]
        assert step["advantages"]
        assert step["error"] <= bar, step
        assert step["norm"] > 1e-2


def test_packed_and_padded_runs_have_one_ledger_and_end_at_the_same_policy(
    run: Callable[..., Path], fitted: dict[str, Any]
) -> None:
    folder = run("packed_fits", 0)
    assert diff(folder / "padded", folder / "packed", rtol=1e-4).equal
    assert_same_end(
        "openrlhf, sgd: packed and padded", fitted["start"], fitted["ends"]["padded"], fitted["ends"]["packed"]
    )
