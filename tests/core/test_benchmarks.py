"""The benchmarks that need no framework still run and say what their tables have. Speed is judged nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measured(name: str, folder: Path, *options: str) -> Any:
    file = folder / "figures.json"
    subprocess.run([sys.executable, str(BENCHMARKS / name), *options, "--json", str(file)], check=True)
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_ledgers_benchmark_measures_every_row_of_its_table(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("orjson")
    few = ("--steps", "2", "--repetitions", "1", "--many-steps", "2", "--many-ranks", "8")
    found = measured("ledger_speed.py", tmp_path, *few)
    kept = json.loads((BENCHMARKS / "ledger_speed.json").read_text(encoding="utf-8"))
    for table in ("milliseconds", "comparing"):
        assert found[table].keys() == kept[table].keys()
    assert min(min(row.values()) for row in found["milliseconds"].values()) > 0
    said = [name.partition("completions, ")[2] for name in found["many"]]
    weight, noise = "one weight of the last step differs (found)", "advantages differ by 1e-08"
    assert said == ["the same lines", weight, "other times", "the same lines", noise]
    assert min(min(row.values()) for row in found["many"].values()) > 0


def test_the_plans_benchmark_measures_every_row_of_its_table(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    found = measured("plan_speed.py", tmp_path)
    kept = json.loads((BENCHMARKS / "plan_speed.json").read_text(encoding="utf-8"))
    assert found.keys() == kept.keys()
    assert found["epoch_completions_per_second"].keys() == kept["epoch_completions_per_second"].keys()
    assert found["seek_bytes"] < 1e5
