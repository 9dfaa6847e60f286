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
VERSIONS = ("0.3.2", "0.3.3.dev0")


def _proofs() -> ModuleType:
    found = importlib.util.spec_from_file_location("easyr1_proofs", HERE / "proofs.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


proofs = _proofs()


@pytest.fixture(scope="module", params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    text = (HERE / "recorded" / f"proofs_{request.param}.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    assert made["gradients"]["1"]["version"] == request.param
    return made


@pytest.mark.parametrize("ranks", [1, 2])
def test_recorded_gradients_meet_the_bar_and_the_controls_miss_it(recorded: dict[str, Any], ranks: int) -> None:
    measured = recorded["gradients"][str(ranks)]
    proofs.check_gradients(measured, ranks)
    proofs.check_controls(measured, ranks)
    proofs.check_edges(measured)


def test_the_recorded_run_of_the_stock_entry_is_the_plan_as_it_is_now(recorded: dict[str, Any]) -> None:
    proofs.check_plan(recorded["runs"]["two ranks"], ranks=2)
    proofs.check_whole_groups(recorded["runs"]["two ranks"])


def test_the_recorded_run_unwrapped_trained_other_steps_and_ended_elsewhere(recorded: dict[str, Any]) -> None:
    assert proofs.differing_steps(recorded["runs"]["two ranks"], recorded["runs"]["observed"]) == 6
    assert recorded["moved"] >= 0.01
    assert recorded["ends_apart"]["observed"] > 10 * 1e-5


def test_the_recorded_run_on_one_device_is_the_same_run(recorded: dict[str, Any]) -> None:
    proofs.check_same(recorded["runs"]["two ranks"], recorded["runs"]["one rank"])
    assert recorded["ends_apart"]["one rank"] <= 1e-5


def test_the_recorded_resumed_run_is_the_same_run(recorded: dict[str, Any]) -> None:
    proofs.check_plan(recorded["runs"]["resumed"], ranks=2)
    assert recorded["ends_apart"]["resumed"] == 0.0


def test_the_recorded_unwrapped_run_on_one_device_is_as_predicted(recorded: dict[str, Any]) -> None:
    proofs.check_prediction(recorded["runs"]["predicted"], recorded["runs"]["predicted"]["argv"])


def test_a_recorded_gradient_beyond_the_bar_fails(recorded: dict[str, Any]) -> None:
    measured = json.loads(json.dumps(recorded["gradients"]["1"]))
    measured["wrapped"][0]["error"] = 1e-3
    with pytest.raises(AssertionError):
        proofs.check_gradients(measured, 1)
