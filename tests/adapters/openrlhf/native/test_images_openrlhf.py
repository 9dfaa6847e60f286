"""L2 of policies that read images: OpenRLHF's real `ActorPPOTrainer` with a tiny Qwen2-VL on one rank, against the
float64 oracle, which sees one completion and its image at a time.

The processes run `images.py`; this one compares. Every prompt has an image.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from images import RUNS

SCRIPT = Path(__file__).parent / "images.py"


# Two ranks pass in some runs and end in BatchDrift in others, by a filler row: docs/openrlhf.md, Images.
@pytest.fixture(scope="module", params=[1], ids=["one rank"])
def measured(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `images.py` found, by run: of every step the errors over the bar."""
    place = tmp_path_factory.mktemp("images")
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={request.param}", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, str(SCRIPT), str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = torch.load(place / "measured.pt", weights_only=True)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_every_step_has_the_oracles_gradient_with_each_completions_own_image(
    measured: dict[str, Any], name: str
) -> None:
    steps = measured[name]
    assert len(steps) == 6
    assert max(step["with"] for step in steps) <= 1, steps


@pytest.mark.parametrize("name", RUNS)
def test_negative_control_with_other_images_the_oracle_misses_the_bar_tenfold(
    measured: dict[str, Any], name: str
) -> None:
    assert min(step["without"] for step in measured[name]) > 10
