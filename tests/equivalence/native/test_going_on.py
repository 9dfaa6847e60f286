"""A run that begins in TRL and goes on in verl trains as TRL's whole one, with one ledger. `suite.py` ran them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from going_on import STEPS

from batchbridge.testing.equivalence import CONTROL, LEAST_MOVEMENT, TRAJECTORY_BAR

RUNS: dict[str, Any] = json.loads(
    (Path(os.environ["BATCHBRIDGE_EQUIVALENCE"]) / "going_on.json").read_text(encoding="utf-8")
)


def test_a_trl_checkpoint_goes_on_in_verl_with_one_ledger_as_if_nothing_had_happened() -> None:
    found = RUNS["continued"]
    assert found["code"] == 0
    assert found["starts"] == [["trl", "fresh", 0], ["verl", "resumed", STEPS]]
    assert found["ledgers"]["equal"], found["ledgers"]
    assert found["ledgers"]["steps_compared"] == 10
    assert found["trajectory"] <= TRAJECTORY_BAR
    assert found["movement"] >= LEAST_MOVEMENT


def test_negative_control_the_same_without_the_optimizers_moments() -> None:
    found = RUNS["without moments"]
    assert found["code"] == 0
    assert found["ledgers"]["equal"], found["ledgers"]  # it trains the same completions
    assert found["trajectory"] >= CONTROL
