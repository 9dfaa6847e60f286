"""`batchbridge try trl` as a user types it: its table against a count of the script that needs no ledger."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "docs"))

import make_outputs

from batchbridge.ledger import read_headers, read_steps
from batchbridge_on_cpu.tried import TriedRuns, hold_against_the_script, tried

GROUP, PROMPTS, STEPS = 4, 9, 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="module")
def runs(place: Path) -> TriedRuns:
    found = tried("trl", place)
    assert found.code == 0, found.text + "".join(
        file.read_text("utf-8", "replace")[-5000:] for file in place.glob("try-*/*/log.txt")
    )
    return found


def test_the_wrapped_column_is_what_the_script_adds_up_to(runs: TriedRuns) -> None:
    hold_against_the_script(runs.columns["wrapped"], group=GROUP, prompts=PROMPTS, steps=STEPS)


@pytest.mark.parametrize("name", ["response tokens in step 0", "weight of a token in step 0", "optimizer steps"])
def test_another_number_would_be_noticed(runs: TriedRuns, name: str) -> None:
    number = runs.columns["wrapped"][name]
    other = number[:-1] + str((int(number[-1]) + 1) % 10)
    changed = {**runs.columns["wrapped"], name: other}
    with pytest.raises(AssertionError):
        hold_against_the_script(changed, group=GROUP, prompts=PROMPTS, steps=STEPS)


def test_both_runs_leave_a_ledger_and_the_lines_fit_into_80_columns(runs: TriedRuns, place: Path) -> None:
    for name, mode in (("native", "observe"), ("wrapped", "enforce")):
        folder = place / "try-trl" / name / "ledger"
        steps = read_steps(folder)
        assert [step["step"] for step in steps] == list(range(STEPS))
        assert steps.incomplete is None
        assert {header["mode"] for header in read_headers(folder)} == {mode}
    assert max(map(len, runs.text.splitlines())) <= 80
    assert "  batchbridge ledger diff try-trl/native/ledger try-trl/wrapped/ledger" in runs.text.splitlines()


def test_wrapped_gradients_are_the_oracles_and_native_ones_are_not(runs: TriedRuns) -> None:
    error, bar = "gradient error, worst step", "bar (max of 1e-6 and 3 x float32 noise)"
    native, wrapped = runs.columns["native"], runs.columns["wrapped"]
    assert float(wrapped[error]) <= float(wrapped[bar])
    assert float(native[error]) > 1000 * float(native[bar])


def test_the_readme_shows_what_it_prints(runs: TriedRuns) -> None:
    """BATCHBRIDGE_RECORD=1 writes the block anew, as `docs/make_outputs.py` does."""
    page = ROOT / "README.md"
    (block,) = [one for one in make_outputs.blocks(page) if one.said.endswith(Path(__file__).name)]
    ((command, expected),) = block.commands
    assert command == "batchbridge try trl"
    if not make_outputs.fits(expected, runs.text) and os.environ.get("BATCHBRIDGE_RECORD") == "1":
        text, (start, end) = page.read_text(encoding="utf-8"), block.span
        new = f"$ {command}\n{make_outputs.shortened(expected, runs.text)}"
        page.write_text(text[:start] + new + text[end:], encoding="utf-8")
        return
    assert make_outputs.fits(expected, runs.text), runs.text
