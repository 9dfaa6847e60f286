"""What OpenRLHF trains unwrapped, as it was recorded, against what the adapter reads of its command.

`recorded/unwrapped.json` has the steps of its stock entry by release: facts about OpenRLHF. `nox -s openrlhf_runs`
makes it again where BATCHBRIDGE_RECORD=1 asks for it.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import orl_proofs as proofs
import pytest

from batchbridge_on_cpu.openrlhf.scripted import command

RECORDED: dict[str, Any] = json.loads(proofs.UNWRAPPED.read_text(encoding="utf-8"))
RELEASES = list(RECORDED)
CHANGES = {name.replace(".", "__"): str(value) for name, value in proofs.WHOLE.items()}


@pytest.mark.parametrize("release", RELEASES)
def test_the_unwrapped_run_trains_what_the_adapter_predicts(release: str) -> None:
    run = RECORDED[release]["predicted"]
    assert (run["framework_version"], run["mode"]) == (release, "observe")
    proofs.check_prediction(run, command(Path("x"), 1, **CHANGES)[1:])


@pytest.mark.parametrize("release", RELEASES)
def test_the_unwrapped_run_trains_every_completion_once(release: str) -> None:
    proofs.check_once(RECORDED[release]["unwrapped"])


@pytest.mark.parametrize(("column", "value"), [("sample", 99), ("weights", 0.5)])
def test_a_step_that_trains_something_else_is_not_the_predicted_one(column: str, value: float) -> None:
    run = copy.deepcopy(RECORDED[RELEASES[0]]["predicted"])
    run["steps"][0][column][1] = value
    with pytest.raises(AssertionError):
        proofs.check_prediction(run, command(Path("x"), 1, **CHANGES)[1:])
