"""benchmarks/check_cost.py still runs on verl's engine. Speed is judged nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "check_cost.py"


def test_the_cost_of_the_checks_is_measured(tmp_path: Path) -> None:
    file, rows = tmp_path / "figures.json", ("16 completions of 8 tokens",)
    words = [sys.executable, str(BENCHMARK), "--framework", "verl", "--rows", *rows, "--json", str(file)]
    subprocess.run(words, check=True)
    found = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert tuple(found) == rows
    assert 0 < found[rows[0]]["share"] < 1
