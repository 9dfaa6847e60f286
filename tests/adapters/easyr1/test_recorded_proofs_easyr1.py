"""The proofs of the running trainer as they were recorded; `native/record_proofs.py` makes them again.

The runs themselves need a checkout of EasyR1: `nox -s easyr1`. Here what they left is held against the plan, the
oracle's bar and the adapter's prediction as they are now.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
GRADIENTS = ("0.3.3.dev0",)
RUNS = {"0.3.3.dev0": {"predicted, 1", "enforced, 1", "enforced, 2", "observed, 2", "stock entry, 2"}}
"""Versions that were measured, and their runs."""


def _proofs() -> ModuleType:
    found = importlib.util.spec_from_file_location("easyr1_proofs", HERE / "proofs.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


proofs = _proofs()


def recorded(kind: str, version: str) -> dict[str, Any]:
    text = (HERE / "recorded" / f"{kind}_{version}.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


@pytest.mark.parametrize("version", GRADIENTS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_recorded_gradients_meet_the_bar_and_the_controls_miss_it(version: str, ranks: int) -> None:
    measured = recorded("gradients", version)[str(ranks)]
    assert measured["version"] == version
    proofs.check_gradients(measured, ranks)
    proofs.check_controls(measured, ranks)
    proofs.check_edges(measured)


@pytest.mark.parametrize("version", GRADIENTS)
def test_a_recorded_gradient_beyond_the_bar_fails(version: str) -> None:
    measured = recorded("gradients", version)["1"]
    measured["wrapped"][0]["error"] = 1e-3
    with pytest.raises(AssertionError):
        proofs.check_gradients(measured, 1)


@pytest.mark.parametrize("version", RUNS)
def test_the_recorded_runs_are_those_that_the_table_names(version: str) -> None:
    assert set(recorded("runs", version)["runs"]) == RUNS[version]


@pytest.mark.parametrize("version", RUNS)
def test_every_recorded_run_that_follows_the_plan_is_the_plan_as_it_is_now(version: str) -> None:
    runs = recorded("runs", version)["runs"]
    for name in RUNS[version] - {"predicted, 1", "observed, 2"}:
        proofs.check_plan(runs[name], ranks=int(name[-1]))
        proofs.check_whole_groups(runs[name])


@pytest.mark.parametrize("version", RUNS)
def test_the_recorded_run_unwrapped_trained_other_steps_and_ended_elsewhere(version: str) -> None:
    said = recorded("runs", version)
    assert proofs.differing_steps(said["runs"]["enforced, 2"], said["runs"]["observed, 2"]) == 6
    assert said["moved"] >= 0.01
    assert said["ends_apart"]["observed, 2"] > 10 * 1e-5


@pytest.mark.parametrize("version", RUNS)
def test_the_recorded_run_on_one_device_and_the_stock_entry_are_the_same_run(version: str) -> None:
    said = recorded("runs", version)
    proofs.check_same(said["runs"]["enforced, 1"], said["runs"]["enforced, 2"])
    proofs.check_same(said["runs"]["stock entry, 2"], said["runs"]["enforced, 2"])
    assert said["ends_apart"]["enforced, 1"] <= 1e-5


@pytest.mark.parametrize("version", RUNS)
def test_the_recorded_unwrapped_run_on_one_device_is_as_predicted(version: str) -> None:
    run = recorded("runs", version)["runs"]["predicted, 1"]
    proofs.check_prediction(run, run["argv"])
