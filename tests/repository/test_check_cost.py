"""What the pages say of the cost of the checks is what benchmarks/check_cost.py measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"trl": "measured", "verl": "verl", "easyr1": "easyr1", "openrlhf": "openrlhf"}
SAID = "less than 1 % of a step of 150-token completions"


@pytest.mark.parametrize("framework", PAGES)
def test_the_cost_of_the_checks_is_what_was_measured(framework: str) -> None:
    rows = json.loads((ROOT / "benchmarks" / "check_cost.json").read_text(encoding="utf-8"))[framework]["rows"]
    assert {name for name in rows if "150" in name}
    assert all(row["share"] < (0.01 if "150" in name else 0.03) for name, row in rows.items())
    page = " ".join((ROOT / "docs" / f"{PAGES[framework]}.md").read_text(encoding="utf-8").split())
    assert SAID in page or "with completions of 150 tokens, less than 1 % of a step" in page
