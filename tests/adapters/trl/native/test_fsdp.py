"""A trainer whose config turns FSDP on: read, observed and held against its plan; enforcing is refused by its name."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version

from batchbridge import wrap
from batchbridge.ledger import diff, read_steps

SCRIPT = Path(__file__).parent / "fsdp_run.py"
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 1,
    "shuffle_dataset": False,
    "loss_type": "grpo",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run, and what the process found."""
    folder = tmp_path_factory.mktemp("fsdp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), json.dumps(SETTINGS)],
        env={**os.environ, "MASTER_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"fsdp"')]
    return folder, json.loads(line)


def test_transformers_says_true_itself_from_5_10_on(run: tuple[Path, dict[str, Any]]) -> None:
    assert (run[1]["fsdp"] == "True") is (Version(transformers.__version__) >= Version("5.10"))


def test_enforcing_is_refused_by_its_name_and_nothing_else(run: tuple[Path, dict[str, Any]]) -> None:
    assert run[1]["refused"] == ["fsdp"]


@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_the_run_goes_to_its_end_and_its_ledger_is_the_plain_runs(
    trainer: Callable[..., Any], tmp_path: Path, run: tuple[Path, dict[str, Any]], mode: str
) -> None:
    folder, found = run
    plain = wrap(trainer(**SETTINGS), mode="observe", ledger=tmp_path / "plain")
    plain.train()
    assert found[mode] == plain.state.global_step == 3
    compared = diff(tmp_path / "plain", folder / f"ledger-{mode}", rtol=1e-4)
    assert compared.equal, compared.text()
    assert all(step["prompt"] for step in read_steps(folder / f"ledger-{mode}"))
