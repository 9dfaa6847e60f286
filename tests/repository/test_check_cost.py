"""Measuring a step costs little in every record of benchmarks/check_cost.py, of which the pages have figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("framework", ["trl", "verl", "easyr1", "openrlhf"])
def test_the_checks_take_less_than_a_hundredth_of_a_step_of_long_completions(framework: str) -> None:
    rows = json.loads((ROOT / "benchmarks" / "check_cost.json").read_text(encoding="utf-8"))[framework]["rows"]
    assert {name for name in rows if "150" in name}
    assert all(row["share"] < (0.01 if "150" in name else 0.03) for name, row in rows.items())
