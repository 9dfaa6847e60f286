"""How long ranks computed in a step: recorded where it is known, told by name, and no part of what was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted_ledger import ORDERED, header, record, rows_of

from batchbridge.cli.main import cli
from batchbridge.errors import LedgerError
from batchbridge.ledger import TIMES, Writer, diff, read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.scanning import untimed
from batchbridge.ledger.summary import summarise
from batchbridge.render.html import ledger as page
from batchbridge.render.ledger import summary

SLOW = {0: [1.0, 1.0, 2.0, 1.0], 1: [3.0, 3.0, 1.0, 1.5]}
"""Seconds of each rank in each step: rank 1 is slowest in three steps of four."""


def write(folder: Path, seconds: Mapping[int, list[float | None]] | None) -> Path:
    """A ledger of two ranks and four steps."""
    for rank in range(2):
        with Writer(folder, header(rank, 2, spec=ORDERED)) as writer:
            for step in range(4):
                took = None if seconds is None else seconds[rank][step]
                writer.append(record(step, rows_of(step)[rank::2], compute_seconds=took))
    return folder


def test_a_step_has_the_seconds_of_each_rank(tmp_path: Path) -> None:
    timed = write(tmp_path / "a", SLOW)
    assert [step["compute_seconds"] for step in read_steps(timed)] == [[1.0, 3.0], [1.0, 3.0], [2.0, 1.0], [1.0, 1.5]]
    line = (timed / "rank-00001.jsonl").read_bytes().splitlines()[1]
    assert line.endswith(b',"compute_seconds":3.0}'), "at the end, where a comparison cuts it off"
    assert list(json.loads(line))[-1:] == list(TIMES)


def test_an_older_ledger_has_no_seconds_and_reads_as_before(tmp_path: Path) -> None:
    older = write(tmp_path / "a", None)
    assert b"compute_seconds" not in (older / "rank-00000.jsonl").read_bytes()
    assert [step["compute_seconds"] for step in read_steps(older)] == [None] * 4
    found = summarise(Ledger(older))
    assert (found.timed, found.straggler) == (0, None)
    assert "slowest" not in summary(found)


def test_the_summary_and_the_page_name_the_slowest_rank(tmp_path: Path) -> None:
    found = summarise(Ledger(write(tmp_path / "a", SLOW)))
    assert found.straggler is not None
    assert found.straggler[0] == 1
    ratios = (1.5 + 1.5 + 4 / 3 + 1.2) / 4
    told = f"slowest rank: 1, in 3 of 4 steps; the slowest of a step computes {ratios:.2f} times the ranks' mean"
    assert told in summary(found)
    rows = [line.split() for line in summary(found).splitlines()[-2:]]
    assert rows == [["0", "8", "20", "5", "1"], ["1", "8", "20", "8.5", "3"]]
    shown = page(found)
    assert "1, in 3 of 4 steps" in shown
    assert "Slowest rank" in shown, "a chart"
    assert "slowest in steps" in shown


def test_a_step_that_is_shown_names_its_slowest_rank(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["ledger", "show", str(write(tmp_path / "a", SLOW)), "--step", "2"])
    assert "slowest rank 0, 1.33 of the mean" in shown.output


def test_a_rank_whose_seconds_are_unknown_leaves_the_slowest_open(tmp_path: Path) -> None:
    found = summarise(Ledger(write(tmp_path / "a", {0: [1.0] * 4, 1: [None, None, 2.0, 2.0]})))
    assert found.timed == 2
    assert found.ranks[1].seconds == 4.0


def test_two_runs_that_took_other_times_are_equal_and_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (
        write(tmp_path / name, times) for name, times in (("a", SLOW), ("b", None), ("c", {0: SLOW[1], 1: SLOW[0]}))
    )
    monkeypatch.setattr("batchbridge.ledger.comparing.merge", pytest.fail)
    for other in (b, c):
        assert diff(a, other, exact=True).equal


def test_what_only_looks_like_a_time_is_compared() -> None:
    for line in (
        b'{"x":{"y":1,"compute_seconds":1.5}}\n',
        b'{"compute_seconds":1.5,"step":2}\n',
        b'{"x":"a,\\"compute_seconds\\":1.5}"}\n',
        b'{"x":1,"compute_seconds":1.5}',
        b'{"x":1,"compute_seconds":1.}\n',
        b'{"x":1,"compute_seconds":-1}\n',
    ):
        assert untimed([line]) == [line]
    assert untimed([b'{"x":1,"compute_seconds":1e-06}\n', b'{"x":1,"compute_seconds":12}\n']) == [b'{"x":1}\n'] * 2


@pytest.mark.parametrize("wrong", ["-1", '"slow"', "true", "null", "1e400", "[1]"])
def test_seconds_that_are_no_number_are_refused_with_their_place(tmp_path: Path, wrong: str) -> None:
    path = write(tmp_path / "a", SLOW) / "rank-00000.jsonl"
    path.write_text(path.read_text().replace('"compute_seconds":2.0', f'"compute_seconds":{wrong}'))
    with pytest.raises(LedgerError, match=r"compute_seconds is not a number of seconds|not JSON|number"):
        list(read_steps(tmp_path / "a"))


@pytest.mark.parametrize("unknown", [float("nan"), float("inf"), -1e-3, None])
def test_what_no_clock_says_is_not_written(tmp_path: Path, unknown: float | None) -> None:
    with Writer(tmp_path / "a", header()) as writer:
        writer.append(record(0, rows_of(0), compute_seconds=unknown))
    assert b"compute" not in (tmp_path / "a" / "rank-00000.jsonl").read_bytes()
