"""The record of tests/kernels/record.py: runs that train the same end alike, whatever the processor's kernels are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge.testing.equivalence import TRAJECTORY_BAR

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def record() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_kernels", HERE / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))
    return found


def test_every_set_of_kernels_has_every_case(record: ModuleType, recorded: dict[str, Any]) -> None:
    assert list(recorded["figures"]) == list(record.KERNELS)
    cases = {frozenset(figures) for figures in recorded["figures"].values()}
    assert len(cases) == 1
    (names,) = cases
    assert {name.partition(",")[0] for name in names} == set(record.TESTS)


def test_sound_runs_stay_below_a_third_of_the_bar_and_faults_miss_it_tenfold(recorded: dict[str, Any]) -> None:
    figures = [figure for found in recorded["figures"].values() for figure in found.values()]
    assert {figure["kind"] for figure in figures} == {"sound", "control"}
    for figure in figures:
        if figure["kind"] == "sound":
            assert figure["said"] <= TRAJECTORY_BAR / 3, figure
        else:
            assert figure["said"] >= 10 * TRAJECTORY_BAR, figure


def test_the_page_has_the_table_of_the_record(record: ModuleType, recorded: dict[str, Any]) -> None:
    page = record.PAGE.read_text(encoding="utf-8")
    assert record.with_table(page, recorded) == page
