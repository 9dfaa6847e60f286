"""A ledger as CSV and Parquet has every completion, every value, and a meaning for each column."""

from __future__ import annotations

import csv
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge.errors import LedgerError
from batchbridge.ledger import COLUMNS, SCALARS, export, read_steps
from batchbridge.ledger.reading import Ledger

Write = Callable[..., Path]


def expected(folder: Path) -> list[dict[str, Any]]:
    """The rows, read by the ledger's own reader."""
    rows = []
    for step in read_steps(folder):
        said = step["normaliser"] or {}
        for place in range(len(step["prompt"])):
            row = {name: step[name] for name in SCALARS if name != "normaliser"}
            row |= {f"normaliser_{name}": said.get(name) for name in ("aggregation", "completions", "tokens")}
            row |= {f"normaliser_{name}": said.get(name) for name in ("constant", "prompts")}
            row |= {"ranks": step["ranks"], "rank": step["rank"][place]}
            row |= {name: None if step[name] is None else step[name][place] for name in COLUMNS}
            rows.append(row)
    return rows


def hard(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    """Values that tables tend to lose."""
    rows[0]["reward"], rows[1]["reward"] = float("nan"), None
    rows[2]["advantage"] = 0.1 + 0.2
    scalars["gradient_norm"] = float("inf")
    if step == 1:
        scalars["normaliser"] = None
    if step == 2:
        for row in rows:
            row["weights"] = None


def test_every_column_has_a_meaning_and_a_kind() -> None:
    assert set(export.MEANINGS) == set(export.KINDS)
    assert {*SCALARS, *COLUMNS} - {"normaliser"} <= set(export.MEANINGS)
    assert all(export.MEANINGS.values())


def test_csv_has_every_completion_of_every_step(ledger: Write, tmp_path: Path) -> None:
    folder = ledger("a", world_size=2, edit=hard)
    assert export.to_csv(Ledger(folder), tmp_path / "run.csv") == 16
    with (tmp_path / "run.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in in_order(expected(folder))
    ]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in export.MEANINGS} for row in rows]


def test_parquet_has_every_completion_with_its_kinds_and_meanings(
    ledger: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    monkeypatch.setattr(export, "ROWS_AT_A_TIME", 6)
    folder = ledger("a", world_size=2, edit=hard)
    assert export.to_parquet(Ledger(folder), tmp_path / "run.parquet") == 16
    file = parquet.ParquetFile(tmp_path / "run.parquet")
    assert file.num_row_groups == 2  # of 8 and 8 rows: whole steps until there are 6
    table = file.read()
    assert {field.name: field.metadata[b"meaning"].decode() for field in table.schema} == export.MEANINGS
    assert list(map(repr, table.to_pylist())) == list(map(repr, in_order(expected(folder))))  # repr: nan equals nan


def test_nothing_half_written_is_left_behind(ledger: Write, tmp_path: Path) -> None:
    folder = ledger("a")
    (tmp_path / "run.csv").write_text("older", encoding="utf-8")
    file = folder / "rank-00000.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace('"reward":[1.0', '"reward":["x"', 1), encoding="utf-8")
    with pytest.raises(LedgerError):
        export.to_csv(Ledger(folder), tmp_path / "run.csv")
    assert (tmp_path / "run.csv").read_text(encoding="utf-8") == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "run.csv"]


def test_a_number_that_parquet_cannot_hold_is_told(ledger: Write, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")

    def vast(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        rows[0]["prompt"] = 2**70

    with pytest.raises(LedgerError, match="a value that Parquet cannot hold"):
        export.to_parquet(Ledger(ledger("a", edit=vast)), tmp_path / "run.parquet")
    assert not (tmp_path / "run.parquet").exists()


def test_memory_does_not_grow_with_the_run(ledger: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    monkeypatch.setattr(export, "ROWS_AT_A_TIME", 256)
    # Bytes of lines that are read ahead: held below the smaller run's size.
    monkeypatch.setattr("batchbridge.ledger.reading._BLOCK_BYTES", 1 << 16)
    peaks = []
    for name, steps in (("warm", 10), ("short", 300), ("long", 2400)):
        run = Ledger(ledger(name, steps=steps))
        tracemalloc.start()
        export.to_parquet(run, tmp_path / f"{name}.parquet")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 2 * peaks[1]
