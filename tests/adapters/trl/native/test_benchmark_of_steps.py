"""benchmarks/trl_step_time.py still runs, and finds the native gradient. Speed is judged nowhere. By name only:
`nox -s trl_full`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.by_hand

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "trl_step_time.py"
SMALL = ("--lengths", "equal", "--completions", "8", "--tokens-per-device", "304", "--steps", "1", "--memory")


def test_a_wrapped_step_of_the_benchmark_has_the_native_gradient(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    subprocess.run([sys.executable, str(BENCHMARK), *SMALL, "--pairs", "1", "--json", str(file)], check=True)
    found = json.loads(file.read_text(encoding="utf-8"))
    kept = json.loads(BENCHMARK.with_suffix(".json").read_text(encoding="utf-8"))[0]
    assert 0 < found["gradients_apart"] <= 1e-6
    assert found.keys() == kept.keys() - {"command", "load_average"}
    assert found["options"].keys() == kept["options"].keys()
    # Not speed: as many milliseconds as a step surely takes, on both sides.
    assert min(found["native_step_seconds"], found["wrapped_step_seconds"]) > 1e-3


def test_the_balance_of_two_ranks_is_measured(tmp_path: Path) -> None:
    file, few = tmp_path / "figures.json", ("--completions", "8", "--steps", "1")
    benchmark = BENCHMARK.with_name("trl_balance.py")
    subprocess.run([sys.executable, str(benchmark), *few, "--json", str(file)], check=True)
    found = json.loads(file.read_text(encoding="utf-8"))["ways"]
    assert found["turns"]["padded"] <= found["sums"]["padded"]
    for way in found.values():
        assert 0 < way["mean_seconds"] <= way["largest_sum_seconds"] <= way["turns_seconds"]


def test_the_cost_of_the_checks_is_measured(tmp_path: Path) -> None:
    file, rows = tmp_path / "figures.json", ("16 completions of 8 tokens",)
    benchmark = BENCHMARK.with_name("check_cost.py")
    subprocess.run([sys.executable, str(benchmark), "--rows", *rows, "--json", str(file)], check=True)
    found = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert tuple(found) == rows
    assert 0 < found[rows[0]]["share"] < 1
