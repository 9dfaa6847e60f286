"""L2: gradients of verl's real `TrainingWorker` (FSDP2 engine, gloo) against the float64 oracle, on one and two ranks.

The processes run `gradients.py`; this one compares. Ragged lengths, a completion whose loss mask is all zero, filler
rows, a short last step, fixed and dynamic micro-batches.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import diff, read_steps

SCRIPT = Path(__file__).parent / "gradients.py"
VERSION = importlib.metadata.version("verl")
CASES: dict[str, int] = {
    "0.8.0": {"vanilla": 4, "vanilla, k3": 4, "vanilla, k2": 2, "gspo": 1, "cispo": 4},
    "0.9.0": {"vanilla": 5, "vanilla, k3": 5, "vanilla, k2": 2, "gspo": 1, "cispo": 5, "dro": 5},
    "0.9.1": {"vanilla": 5, "vanilla, k3": 5, "vanilla, k2": 2, "gspo": 5, "cispo": 5, "dro": 5},
}[VERSION]
"""Objectives of the installed version, and how many aggregations each is measured with."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Where each world size left what it measured."""
    from batchbridge_verl.testing.workers import save_policy

    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks_{ranks}")
        save_policy(folder / "policy")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
        ran = subprocess.run(
            [*command, str(SCRIPT), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert ran.returncode == 0, ran.stderr[-20000:]
        found[ranks] = folder
    return found


@pytest.fixture(scope="module")
def measured(folders: dict[int, Path]) -> dict[int, dict[str, Any]]:
    return {ranks: torch.load(folder / "measured.pt", weights_only=True) for ranks, folder in folders.items()}


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def bar(result: dict[str, Any]) -> float:
    return float(max(1e-6, 3 * result["floor"]))


@pytest.mark.parametrize("case", CASES)
def test_every_step_has_the_oracles_gradient(
    measured: dict[int, dict[str, Any]], ranks: int, case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured[ranks]["wrapped"] if result["case"] == case]
    per_split: dict[str, int] = defaultdict(int)
    for result in results:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
        per_split[result["split"]] += 1
    assert set(per_split.values()) == {3 * CASES[case]}
    assert len(per_split) == (4 if ranks == 1 else 2)
    worst = max(results, key=lambda result: result["error"])
    record("gradient", f"{case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


@pytest.mark.parametrize("case", ["vanilla", "gspo", "cispo"])
def test_enough_tokens_are_clipped_for_clipping_to_be_tested(measured: dict[int, dict[str, Any]], case: str) -> None:
    shares = [result["clipped"] for result in measured[1]["wrapped"] if result["case"] == case]
    assert max(shares) >= 0.05


@pytest.mark.parametrize(
    "control", ["seq-mean-token-sum-norm, null factor", "geo_mean", "seq-mean-token-sum, filler rows in B"]
)
def test_negative_control_verl_alone_misses_the_bar_tenfold(
    measured: dict[int, dict[str, Any]], ranks: int, control: str, record: Callable[..., None]
) -> None:
    assert measured[ranks]["natively"][control] > 10
    record("natively", f"{control}, ranks: {ranks}", bars=measured[ranks]["natively"][control])


def test_positive_control_verl_alone_meets_the_bar_where_its_denominators_are_right(
    measured: dict[int, dict[str, Any]], ranks: int
) -> None:
    assert measured[ranks]["natively"]["positive control: token-mean"] <= 1


def test_detached_ratios_ignore_the_old_logprobs_that_the_batch_carries(
    measured: dict[int, dict[str, Any]], ranks: int
) -> None:
    assert measured[ranks]["detached"]["error"] <= bar(measured[ranks]["detached"])


def test_other_rows_than_planned_are_refused_before_the_update(measured: dict[int, dict[str, Any]], ranks: int) -> None:
    members, weights, insisting, applied = measured[ranks]["drifts"]
    assert members.startswith("optimizer step 0 departs from the plan in its order")
    assert weights.startswith("optimizer step 0 departs from the plan in its weights")
    assert insisting.startswith("optimizer step 0 departs from the plan in its weights")
    assert applied == "nothing applied"


def test_a_step_without_a_token_updates_nothing_and_the_ledger_says_so(
    measured: dict[int, dict[str, Any]], folders: dict[int, Path], ranks: int
) -> None:
    assert measured[ranks]["empty"]["untouched"]
    first, second = read_steps(folders[ranks] / "empty_ledger")
    assert (first["skipped"], first["normaliser"]["tokens"]) == (True, 0)
    assert (second["skipped"], second["normaliser"]["completions"]) == (False, 5)


def test_one_and_two_ranks_write_the_same_ledger(folders: dict[int, Path]) -> None:
    compared = diff(folders[1] / "empty_ledger", folders[2] / "empty_ledger", rtol=1e-5)
    assert compared.equal, compared.text()
