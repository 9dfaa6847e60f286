"""What a step record may have beside its scalars, and steps whose gradient is not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scripted_ledger import header, record, rows_of

from batchbridge import LedgerError
from batchbridge.ledger import Writer, diff, read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import summarise
from batchbridge.render.ledger import summary
from batchbridge.running.launch import Launch
from batchbridge.running.spoken import after


def written(folder: Path, *more: dict[str, Any]) -> Path:
    with Writer(folder, header()) as writer:
        for step, values in enumerate(more):
            writer.append(record(step, rows_of(step), **values))
    return folder


def test_the_ratio_of_a_changed_gradient_is_read_back_and_compared(tmp_path: Path) -> None:
    ratios = [{"gradient_ratio": 0.5, "compute_seconds": 2.0}, {"gradient_ratio": math.inf}, {}]
    changed = written(tmp_path / "changed", *ratios)
    assert [step["gradient_ratio"] for step in read_steps(changed)] == [0.5, math.inf, None]
    assert [step["compute_seconds"] for step in read_steps(changed)] == [[2.0], None, None]
    assert diff(changed, written(tmp_path / "again", *ratios)).equal


def test_a_ratio_that_is_no_number_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a", {"gradient_ratio": 0.5}) / "rank-00000.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"gradient_ratio":0.5', b'"gradient_ratio":true'))
    with pytest.raises(LedgerError, match="gradient_ratio = True is not: norm of the gradient"):
        list(read_steps(tmp_path / "a"))


def test_steps_whose_gradient_is_not_finite_are_counted(tmp_path: Path) -> None:
    norms = (1.0, math.inf, math.nan, 2.0)
    folder = written(tmp_path / "a", *({"gradient_norm": norm} for norm in norms))
    assert "the gradient of 2 steps" in summary(summarise(Ledger(folder)))
    (said,) = after(Launch(framework="trl", hooks={}, ledger=str(folder)), 0)
    assert "0 skipped, 2 with a gradient that is not finite: `batchbridge ledger verify" in said
    sound = written(tmp_path / "b", {"gradient_norm": 1.0})
    assert "finite" not in summary(summarise(Ledger(sound)))


def test_halved_budgets_are_read_back_and_no_part_of_what_was_trained(tmp_path: Path) -> None:
    halved = [["scoring", 64, 32], ["training", 100, 40]]
    found = written(tmp_path / "a", {"halved_budgets": halved}, {})
    assert [step["halved_budgets"] for step in read_steps(found)] == [[halved], None]
    assert diff(found, written(tmp_path / "b", {}, {})).equal
    file = found / "rank-00000.jsonl"
    file.write_bytes(file.read_bytes().replace(b'["training",100,40]', b'["training",100]'))
    with pytest.raises(LedgerError, match="is not: token budgets that this rank halved"):
        list(read_steps(found))
