"""Whole runs of OpenRLHF's `PPOTrainer.fit` whose producer or optimizer something else has a hand in: each ends before
the update that it would have changed; see `whole_fits.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STEPS = 6
"""Of three rollouts of two steps; the second rollout's first step is step 2."""
TAMPERED = {
    # what is changed once the first rollout is trained -> the aspect in which the run departs
    "samples": "settings",
    "temperature": "settings",
    "estimator": "settings",
    "scaled": "inputs",
    "exchanged": "inputs",
    "rate": "learning_rate",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    script = Path(__file__).parent / "whole_fits.py"
    ran = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-5000:]
    found: dict[str, Any] = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("what", TAMPERED)
def test_a_run_that_is_changed_behind_its_first_rollout_ends_before_the_second_one_is_trained(
    said: dict[str, Any], what: str
) -> None:
    assert said[what] == [TAMPERED[what], 2, 2]


def test_the_same_run_ends_well_where_nobody_has_a_hand_in_it(said: dict[str, Any]) -> None:
    assert said["nothing"] == ["", None, STEPS]


def test_advantages_of_ones_own_are_refused_by_name_and_trained_where_they_are_allowed(said: dict[str, Any]) -> None:
    assert said["own"] == ["advantages", "unproven_code"]
    assert said["own, allowed"] == ["", None, STEPS]
