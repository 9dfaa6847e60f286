"""L2 of policies that read images: OpenRLHF's real `ActorPPOTrainer` with a tiny Qwen2-VL on one and two ranks, against
the float64 oracle, which sees one completion and its image at a time.

The processes run `images.py`; this one compares. Every prompt has an image.
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
from images import runs

SCRIPT = Path(__file__).parent / "images.py"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """(ranks) -> what `images.py` found, by run: of every step the errors over the bar."""
    return functools.cache(functools.partial(_measured, tmp_path_factory))


def _measured(factory: pytest.TempPathFactory, ranks: int) -> dict[str, Any]:
    place = factory.mktemp("images")
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, str(SCRIPT), str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = torch.load(place / "measured.pt", weights_only=True)
    return found


CASES = [(ranks, name) for ranks in (1, 2) for name in runs(ranks)]


@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_every_step_has_the_oracles_gradient_with_each_completions_own_image(
    measured: Callable[[int], dict[str, Any]], ranks: int, name: str
) -> None:
    steps = measured(ranks)[name]
    assert len(steps) == 6
    assert max(step["with"] for step in steps) <= 1, steps


@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_negative_control_with_other_images_the_oracle_misses_the_bar_tenfold(
    measured: Callable[[int], dict[str, Any]], ranks: int, name: str
) -> None:
    assert min(step["without"] for step in measured(ranks)[name]) > 10
