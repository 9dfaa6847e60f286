"""DDP's communication hooks on two ranks: halves are allowed for by their own noise, all else is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.kit.ddp_exchange import Exchange, exchange_of

SCRIPT = Path(__file__).with_name("ddp_hooks_run.py")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ddp_hooks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ran = subprocess.run(
        [*command, str(SCRIPT), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (folder / "said.json").is_file(), ran.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("hook", ["no", "fp16", "bf16"])
def test_a_hook_that_sends_halves_stops_no_run(said: dict[str, Any], hook: str, mode: str) -> None:
    assert said[f"{hook}, {mode}"] == ([] if hook == "no" else [f"{hook}_compress_hook"])


@pytest.mark.parametrize("hook", ["no", "fp16", "bf16"])
def test_beside_such_a_hook_one_matrix_by_five_percent_is_found(said: dict[str, Any], hook: str) -> None:
    step, aspect, detail = said[f"{hook}, tampered"]
    assert (step, aspect) == (3, "gradient")
    assert "of 1 of 21 parameters" in detail
    assert "layers.1.mlp.down_proj.weight (" in detail


def test_a_hook_that_approximates_is_refused_by_name_and_can_be_allowed(said: dict[str, Any]) -> None:
    assert said["power_sgd"] == ["refused", "communication_hook"]
    step, aspect, detail = said["power_sgd, verify"]
    assert (step, aspect) == (2, "gradient"), "two steps are exchanged as they are"
    assert "powerSGD_hook.powerSGD_hook" in detail
    assert 'allow=("gradient_transform",)' in detail
    assert said["power_sgd, allowed"] == ["powerSGD_hook"]


def test_a_model_without_such_a_hook_exchanges_gradients_as_they_are() -> None:
    assert exchange_of(torch.nn.Linear(2, 2)) == Exchange()
    assert Exchange().lost_of(torch.Size((8, 8))) == 0
