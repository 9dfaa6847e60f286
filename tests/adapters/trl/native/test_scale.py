"""benchmarks/scale.py still runs, says what its table has, and counts the bytes that two real processes exchange."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # its processes import it by this name
    return importlib.import_module("scale")


def test_every_row_of_the_table_is_measured_and_the_simulation_agrees_with_two_real_processes(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    small = ("--ranks", "8", "--completions", "64", "--samples", "2", "--prompts", "1000")
    subprocess.run([sys.executable, str(BENCHMARKS / "scale.py"), *small, "--json", str(file)], check=True)
    found = json.loads(file.read_text(encoding="utf-8"))
    kept = json.loads((BENCHMARKS / "scale.json").read_text(encoding="utf-8"))
    assert found.keys() == kept.keys()
    assert found["control"] == kept["control"]
    assert found["control"]["real"] == found["control"]["simulated"]
    for sizes in kept["sizes"].values():
        assert found["sizes"]["64"].keys() == sizes.keys()
        assert found["sizes"]["64"]["exchange"].keys() == sizes["exchange"].keys()


def test_the_pages_have_what_the_script_recorded(scale: ModuleType) -> None:
    recorded = json.loads((BENCHMARKS / "scale.json").read_text(encoding="utf-8"))
    (found,) = scale.BLOCK.findall((BENCHMARKS.parent / "docs" / "trl.md").read_text(encoding="utf-8"))
    assert found == scale.block(recorded)
    assert (BENCHMARKS / "scale.md").read_text(encoding="utf-8") == scale.page(recorded)


def test_what_ranks_send_is_what_ranks_receive(scale: ModuleType) -> None:
    plan, lengths = scale.Plan(scale.spec(4, 16, 9216), 1000), scale.made_up_lengths(16 * scale.STEPS)
    ranks = [scale.Rank(plan, lengths, 4, rank) for rank in range(4)]
    held = [one.share_out() for one in ranks]
    assert sum(one.traffic.sent for one in ranks) == sum(one.traffic.received for one in ranks) > 0
    trained = [position for rows in held for position in rows.slots]
    assert sorted(trained) == list(range(len(lengths))), "every row is on the one rank that trains it"


def test_tampering_a_simulation_of_other_lengths_is_noticed(scale: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    native = scale.made_up_lengths

    def longer(completions: int) -> list[tuple[int, int, int]]:
        """One token more of each, in this process alone."""
        return [(response + 1, prompt, completion + 1) for response, prompt, completion in native(completions)]

    monkeypatch.setattr(scale, "made_up_lengths", longer)
    assert not scale.control()["equal"]
