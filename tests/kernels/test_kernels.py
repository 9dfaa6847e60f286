"""The script of runs under other kernels: which figures it lets pass, and the table that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge.testing.equivalence import TRAJECTORY_BAR
from batchbridge_on_cpu.scripts import module_at

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return module_at(HERE / "record.py", "record_kernels")


def test_the_bar_is_that_of_a_trajectory(record: ModuleType) -> None:
    assert record.BAR == TRAJECTORY_BAR


@pytest.mark.parametrize(
    ("kind", "said", "passes"),
    [("sound", 3e-6, True), ("sound", 3.4e-6, False), ("control", 1.1e-4, True), ("control", 9e-5, False)],
)
def test_runs_that_train_the_same_keep_to_a_third_of_the_bar_and_faults_miss_it_tenfold(
    record: ModuleType, kind: str, said: float, passes: bool
) -> None:
    assert (record.beyond({"AVX2": {"trl, sgd": {"kind": kind, "said": said}}}) == []) is passes


def test_the_page_has_the_table_of_the_figures(record: ModuleType) -> None:
    page, figures = record.PAGE.read_text(encoding="utf-8"), json.loads(record.FIGURES.read_text(encoding="utf-8"))
    assert record.with_table(page, figures) == page
