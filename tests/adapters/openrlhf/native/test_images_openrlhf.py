"""L2 of policies that read images: OpenRLHF's real `ActorPPOTrainer` with a tiny Qwen2-VL on one and two ranks, against
the float64 oracle, which sees one completion and its image at a time.

The processes run `images.py`; this one compares. Every prompt has an image, or on one rank some have none.
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
from images import RUNS, WAYS, runs
from tampering import STEP

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


RANKS = [pytest.param(1, marks=pytest.mark.by_hand), 2]
CASES = [pytest.param(1, name, marks=pytest.mark.by_hand) for name in runs(1)] + [(2, name) for name in runs(2)]


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
    steps = measured(ranks)[name]
    assert min(step["without"] for step in steps if step["images"]) > 10
    assert all(step["images"] for step in steps) == (name in RUNS), "of some, a step has no image at all"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", RANKS)
def test_a_completion_that_is_shown_another_image_or_none_ends_the_step_on_every_rank(
    measured: Callable[[int], dict[str, Any]], ranks: int, way: str
) -> None:
    """ZeRO-2 on one rank, ZeRO-3 on two."""
    told = measured(ranks)["tampered"][way]
    assert len(told) == ranks
    for rank in told:
        assert (rank["step"], rank["aspect"], rank["applied"]) == (STEP, WAYS[way][1], STEP), told
        assert "tokens or images" in rank["detail"]


@pytest.mark.parametrize("ranks", RANKS)
def test_negative_control_the_same_run_that_nobody_tampers_with_trains_to_its_end(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert {(rank["detail"], rank["applied"]) for rank in measured(ranks)["tampered"]["nobody"]} == {
        ("trained to its end", 6)
    }


@pytest.mark.parametrize("ranks", RANKS)
def test_some_prompts_without_an_image_are_refused_on_several_ranks_and_under_zero_3(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    said = measured(ranks)["refused"]
    assert len(said) == ranks
    assert all("some prompts have images and others none" in one for one in said)


def test_negative_control_under_zero_3_alone_deepspeed_applies_the_towers_last_gradient_again(
    measured: Callable[[int], dict[str, Any]],
) -> None:
    tower = measured(1)["tower"]
    assert all(min(found["with images"]) > 0 for found in tower.values())
    assert max(*tower[1]["without"], *tower[2]["without"]) == 0
    assert set(tower[3]["without"]) == {tower[3]["with images"][-1]}
