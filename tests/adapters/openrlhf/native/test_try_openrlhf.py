"""`batchbridge try openrlhf` as a user types it: its table against a count of the script that needs no ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchbridge.ledger import read_headers, read_steps
from batchbridge_on_cpu.tried import TriedRuns, hold_against_the_script, tried

GROUP, PROMPTS, STEPS = 3, 12, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="module")
def runs(place: Path) -> TriedRuns:
    found = tried("openrlhf", place)
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
        folder = place / "try-openrlhf" / name / "ledger"
        steps = read_steps(folder)
        assert [step["step"] for step in steps] == list(range(STEPS))
        assert steps.incomplete is None
        assert {header["mode"] for header in read_headers(folder)} == {mode}
    assert max(map(len, runs.text.splitlines())) <= 80
    assert "  batchbridge ledger diff try-openrlhf/native/ledger try-openrlhf/wrapped/ledger" in runs.text.splitlines()
