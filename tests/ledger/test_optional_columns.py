"""Which tokens a loss chose by itself: a column that only ledgers of such losses have."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from scripted_ledger import ORDERED, header, record, rows_of

from batchbridge.errors import LedgerError
from batchbridge.ledger import OPTIONAL_COLUMNS, Writer, diff, read_steps
from batchbridge.ledger.certificates import certificate, verify
from batchbridge.ledger.export import to_csv
from batchbridge.ledger.reading import Ledger

CHOSEN = [["0 2", "", "1", ""], ["", "", "0", "3 4"]]
"""Of each step's four rows."""


def write(folder: Path, chosen: list[list[str]] | None = CHOSEN, *, ranks: int = 2, without: int | None = None) -> Path:
    """Two steps. without: a rank that says nothing of it."""
    for rank in range(ranks):
        with Writer(folder, header(rank, ranks, spec=ORDERED)) as writer:
            for step in range(2):
                told = {} if chosen is None or rank == without else {"chosen_tokens": chosen[step][rank::ranks]}
                writer.append(record(step, rows_of(step)[rank::ranks], **told))
    return folder


def test_a_step_has_every_rows_in_the_rows_order(tmp_path: Path) -> None:
    assert [step["chosen_tokens"] for step in read_steps(write(tmp_path / "a"))] == CHOSEN
    line = (tmp_path / "a" / "rank-00000.jsonl").read_bytes().splitlines()[1]
    assert list(json.loads(line))[-1:] == list(OPTIONAL_COLUMNS)


def test_a_ledger_of_another_loss_has_none_and_the_bytes_that_it_had(tmp_path: Path) -> None:
    other = write(tmp_path / "a", None)
    assert b"chosen" not in (other / "rank-00000.jsonl").read_bytes()
    assert [step["chosen_tokens"] for step in read_steps(other)] == [None, None]


def test_the_time_of_a_step_stands_behind_it(tmp_path: Path) -> None:
    with Writer(tmp_path / "a", header()) as writer:
        writer.append(record(0, rows_of(0), chosen_tokens=CHOSEN[0], compute_seconds=1.5))
    line = (tmp_path / "a" / "rank-00000.jsonl").read_bytes().splitlines()[1]
    assert line.endswith(b'"chosen_tokens":["0 2","","1",""],"compute_seconds":1.5}')
    (step,) = read_steps(tmp_path / "a")
    assert (step["chosen_tokens"], step["compute_seconds"]) == (CHOSEN[0], [1.5])


def test_two_runs_that_chose_other_tokens_differ_in_what_their_tokens_weigh(tmp_path: Path) -> None:
    found = diff(write(tmp_path / "a"), write(tmp_path / "b", [CHOSEN[0], ["", "", "1", "3 4"]], ranks=1))
    assert (found.step, found.aspect) == (1, "weights")
    assert found.detail is not None
    assert "chosen_tokens of 1 of 4 completions: '0' and '1' at" in found.detail


def test_two_runs_that_chose_the_same_on_other_ranks_are_equal(tmp_path: Path) -> None:
    found = diff(write(tmp_path / "a"), write(tmp_path / "b", ranks=1))
    assert found.equal
    assert "chosen_tokens" not in found.not_compared


def test_what_one_run_does_not_say_is_named(tmp_path: Path) -> None:
    found = diff(write(tmp_path / "a"), write(tmp_path / "b", None))
    assert found.equal
    assert found.not_compared["chosen_tokens"] == "one run did not record it"


def test_ranks_that_do_not_all_say_it_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="some ranks of this step give chosen_tokens, others do not"):
        list(read_steps(write(tmp_path / "a", without=1)))


def test_a_rank_that_trains_nothing_has_nothing_to_say(tmp_path: Path) -> None:
    for rank in range(2):
        with Writer(tmp_path / "a", header(rank, 2)) as writer:
            rows: dict[str, Any] = {} if rank else {"chosen_tokens": CHOSEN[0]}
            writer.append(record(0, [] if rank else rows_of(0), **rows))
    (step,) = read_steps(tmp_path / "a")
    assert step["chosen_tokens"] == CHOSEN[0]


def test_a_column_of_another_length_is_not_written(tmp_path: Path) -> None:
    with Writer(tmp_path / "a", header()) as writer, pytest.raises(ValueError, match="columns differ in length"):
        writer.append(record(0, rows_of(0), chosen_tokens=["0"]))


@pytest.mark.parametrize("wrong", ['["0"]', "null", '["0","","1",3]', '"0"'])
def test_a_column_that_is_none_is_refused_with_its_place(tmp_path: Path, wrong: str) -> None:
    path = write(tmp_path / "a", ranks=1) / "rank-00000.jsonl"
    path.write_text(path.read_text().replace('["0 2","","1",""]', wrong))
    with pytest.raises(LedgerError, match="column chosen_tokens"):
        list(read_steps(tmp_path / "a"))


def test_a_certificate_knows_it(tmp_path: Path) -> None:
    document = certificate(write(tmp_path / "a"))
    other = write(tmp_path / "b", [CHOSEN[0], ["", "", "1", "3 4"]])
    assert verify(document, tmp_path / "a").holds
    assert "records.parts: a record of step 1 is another one in the ledger" in verify(document, other).differences


@pytest.mark.parametrize(("chosen", "first"), [(CHOSEN, "0 2"), (None, "")])
def test_a_table_has_it_as_text(tmp_path: Path, chosen: list[list[str]] | None, first: str) -> None:
    to_csv(Ledger(write(tmp_path / "a", chosen)), tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert row["chosen_tokens"] == first
