"""What EasyR1 trains unwrapped, as it was recorded in each release, against what the adapter reads of its command.

`recorded/unwrapped.json` has the steps of unwrapped runs by EasyR1's version and commit: facts about EasyR1.
`native/keep_figures.py` makes it again.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
RECORDED: dict[str, Any] = json.loads((HERE / "recorded" / "unwrapped.json").read_text(encoding="utf-8"))
RUNS = [(version, name) for version, of in RECORDED.items() for name in of["runs"]]


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What is asked of runs, a module of this folder."""
    monkeypatch.syspath_prepend(str(HERE))
    import proofs

    return proofs


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_the_unwrapped_run_on_one_device_trains_what_the_adapter_predicts(
    proofs: ModuleType, version: str, name: str
) -> None:
    run = RECORDED[version]["runs"][name]
    assert (run["framework_version"], run["mode"]) == (version, "observe")
    proofs.check_prediction(run, run["argv"])


@pytest.mark.parametrize(
    ("column", "change"),
    [("prompt", lambda values: values[::-1]), ("weights", lambda values: [2 * (one or 1) for one in values])],
)
def test_a_step_that_trains_something_else_is_not_the_predicted_one(
    proofs: ModuleType, column: str, change: Any
) -> None:
    run = copy.deepcopy(RECORDED["0.3.3.dev0"]["runs"]["fit predicted, 1"])
    run["steps"][0][column] = change(run["steps"][0][column])
    with pytest.raises(AssertionError):
        proofs.check_prediction(run, run["argv"])
