"""What the pages say of micro-batches without padding is what benchmarks/packed_step_time.py measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOUR = "four completions, padded"


MEASURED = json.loads((ROOT / "benchmarks" / "packed_step_time.json").read_text(encoding="utf-8"))


@pytest.fixture(params=sorted(MEASURED))
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def rows(framework: str) -> dict[str, Any]:
    rows: dict[str, Any] = MEASURED[framework]["rows"]
    return rows


def test_packed_micro_batches_run_the_policy_on_the_real_tokens_alone(rows: dict[str, Any]) -> None:
    packed = [one for row in rows.values() for name, one in row.items() if name.endswith("packed")]
    assert len(packed) == 2 * len(rows)
    assert all(one["tokens"] == pytest.approx(1) for one in packed)
    assert all(row[FOUR]["tokens"] > 1.1 for name, row in rows.items() if "lognormal" in name)


def test_control_of_equal_lengths_nothing_is_padded(rows: dict[str, Any]) -> None:
    (row,) = [row for name, row in rows.items() if name.startswith("control")]
    assert all(one["tokens"] == pytest.approx(1) for name, one in row.items() if not name.endswith("shared"))


def test_shared_prompts_are_run_once_and_prompts_of_two_tokens_are_hardly_any() -> None:
    for row, layouts in MEASURED["verl"]["rows"].items():
        shared = [one["tokens"] for name, one in layouts.items() if name.endswith("prompts shared")]
        assert len(shared) == 2
        assert all(tokens < 0.7 if "256" in row else 0.9 < tokens <= 1 for tokens in shared)


def test_the_pages_name_the_table(framework: str) -> None:
    assert "`benchmarks/packed_step_time.md`" in (ROOT / "docs" / f"{framework}.md").read_text(encoding="utf-8")
