"""A ledger whose observing has ended says so to every reader, and is never called whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_ledger import header, record, rows_of

from batchbridge.errors import LedgerError
from batchbridge.ledger import Writer, diff, read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import summarise
from batchbridge.ledger.verifying import verify

WHY = "KeyError: 'advantages' (recording.py:99)"


def ended(folder: Path, *, steps: int = 2, ranks: int = 1, why: str = WHY) -> Path:
    for rank in range(ranks):
        with Writer(folder, header(rank, ranks, mode="observe")) as writer:
            for step in range(steps):
                writer.append(record(step, rows_of(step)))
            writer.end(why)
    return folder


def test_every_reader_says_from_which_step_on_and_why(ledger, tmp_path: Path) -> None:
    folder = ended(tmp_path / "ended")
    said = f"nothing was observed from optimizer step 2 on, the run went on: {WHY}"
    steps = read_steps(folder)
    assert ([step["step"] for step in steps], steps.incomplete) == ([0, 1], said)
    assert summarise(Ledger(folder)).incomplete == said
    found = verify(folder)
    assert (found.incomplete, found.decided) == (said, False)
    difference = diff(ledger("whole"), folder)
    assert not difference.equal
    assert said in difference.text()


def test_a_ledger_of_no_step_says_so_too(tmp_path: Path) -> None:
    steps = read_steps(ended(tmp_path / "ended", steps=0))
    assert not list(steps)
    assert "from optimizer step 0 on" in (steps.incomplete or "")


def test_of_several_ranks_the_one_that_failed_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    for rank, why in enumerate((f"on rank 1: {WHY}", WHY)):
        with Writer(folder, header(rank, 2, mode="observe")) as writer:
            writer.end(why)
    assert (read_steps(folder).incomplete or "").endswith(f"{WHY} on rank 1")


def test_a_resumed_run_is_observed_anew(tmp_path: Path) -> None:
    folder = ended(tmp_path / "ended")
    with Writer(folder, header(mode="observe", started="resumed", at_step=1)) as writer:
        for step in (1, 2, 3):
            writer.append(record(step, rows_of(step)))
    steps = read_steps(folder)
    assert ([step["step"] for step in steps], steps.incomplete) == ([0, 1, 2, 3], None)


def test_a_resumed_run_with_a_gap_behind_the_end_is_no_ledger_of_one_run(tmp_path: Path) -> None:
    folder = ended(tmp_path / "ended")
    with Writer(folder, header(mode="observe", started="resumed", at_step=3)) as writer:
        writer.append(record(3, rows_of(3)))
    with pytest.raises(LedgerError, match="steps 2 to 2 are not recorded"):
        read_steps(folder)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"record": "observing_ended", "step": 7, "why": WHY}, "where step 2 should follow"),
        ({"record": "observing_ended", "step": 2}, "where step 2 should follow"),
        ({"record": "observing_over", "step": 2, "why": WHY}, "unknown record"),
    ],
)
def test_a_line_that_is_none_is_refused(ledger, line: dict, said: str) -> None:
    folder = ledger("run", steps=2)
    with (folder / "rank-00000.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(LedgerError, match=said):
        read_steps(folder)


def test_a_step_behind_the_end_is_refused(tmp_path: Path) -> None:
    folder = ended(tmp_path / "ended")
    with (folder / "rank-00000.jsonl").open("ab") as file:
        file.write(record(2, rows_of(2)).to_line())
    with pytest.raises(LedgerError, match="behind the end of the observing"):
        read_steps(folder)
