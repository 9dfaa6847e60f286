"""DeepSpeed's engine under a wrapped `GRPOTrainer`: two processes run `deepspeed_run.py`, this one compares."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.trajectories import assert_same_end
from batchbridge_trl.releases import has
from batchbridge_trl.testing import flat_parameters

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="a session without DeepSpeed")

SCRIPT = Path(__file__).parent / "deepspeed_run.py"
ENGINE = ["DeepSpeedEngine", "DEEPSPEED"]
STAGES = ("2", "3")


def torchrun(what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(SCRIPT), what, str(folder)], capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    assert torchrun("crash", folder).returncode != 0
    ran = torchrun("measured", folder)
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = torch.load(folder / "measured.pt", weights_only=True)
    return found


def test_every_stage_of_zero_has_the_oracles_gradient(measured: dict[str, Any]) -> None:
    """Raw gradients, whole, right before the engine clips and updates, once per optimizer step of the plan."""
    assert len(measured["gradients"]) == measured["cases"] >= 13
    for name, found in measured["gradients"].items():
        assert found["wrapped"] == ENGINE, name
        assert found["steps"] == [3, 3, 3], name
        assert len(found["errors"]) == 3
        for error, bar in found["errors"]:
            assert error <= bar, (name, error, bar)


def test_every_stage_ends_where_ddp_ends(measured: dict[str, Any]) -> None:
    ends = measured["ends"]
    assert [wrapped for wrapped, _ in ends.values()] == [["DistributedDataParallel", "MULTI_CPU"], *[ENGINE] * 4]
    (_, ddp), *engines = ends.values()
    for stage, (_, parameters) in enumerate(engines):
        assert_same_end(f"trl: ZeRO-{stage} and DDP", flat_parameters(tiny_policy()), parameters, ddp)


def test_a_step_without_a_token_is_no_update_and_the_engines_schedule_goes_on(
    measured: dict[str, Any], folder: Path
) -> None:
    if not measured["without_tokens"]:
        pytest.skip("before TRL 1.0 scripted completions have no loss masks")
    assert measured["without_tokens"]["wrapped"] == ENGINE
    records = list(read_steps(folder / "without_tokens"))
    assert [record["skipped"] for record in records].count(True) == 1
    for record in records:
        assert (record["gradient_norm"] == 0) is record["skipped"], "the norm of a step before is not this step's"
    assert [record["learning_rate"] for record in records] == pytest.approx(measured["without_tokens"]["rates"])


def test_what_an_engine_does_otherwise_is_noticed_before_its_update(measured: dict[str, Any]) -> None:
    """Negative controls: each would train something else, and natively nobody would say so."""
    aspects = {"an update": "membership", "gradients": "gradient", "without": "weights"}
    assert len(measured["tampered"]) in (6, 7)
    for name, (said, unchanged) in measured["tampered"].items():
        (aspect,) = (aspect for begin, aspect in aspects.items() if name.partition(", ")[2].startswith(begin))
        assert said == [0, aspect], name
        assert unchanged, name


@pytest.mark.parametrize("stage", STAGES)
def test_a_native_run_is_observed_and_verified(measured: dict[str, Any], stage: str) -> None:
    watched = measured["watched"]
    assert watched[stage] is True, "observed, and bit-equal to the run that is not"
    assert watched[f"{stage}, as planned"] == [None, False]
    assert watched[f"{stage}, a denominator per micro-batch"] == [[0, "weights"], True]


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_was_killed_resumes_exactly(measured: dict[str, Any], stage: str) -> None:
    """ZeRO-3's run ended by SIGKILL of one rank, ZeRO-2's was stopped; both after a checkpoint inside a rollout."""
    assert measured["resumed"][stage] is True


@pytest.mark.skipif(not has(">=1.0"), reason="with DeepSpeed 0.16.8 gloo ends the process before Python hears of it")
def test_ranks_that_run_unequal_forward_passes_end_with_a_message(folder: Path) -> None:
    """What the layer prevents; without it, a rank waits for the other inside of ZeRO-3's forward pass."""
    torchrun("unequal", folder)
    found = [json.loads((folder / f"unequal-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert "ranks" in [said for said, _ in found]
    assert found[0][1] != found[1][1]
