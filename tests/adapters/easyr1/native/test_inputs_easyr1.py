"""Inputs of the step from their producer to the loss: EasyR1's real trainer and worker, without Ray, in modes enforce
and verify. The process runs `tampered_inputs.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchbridge_on_cpu.easyr1.scripted import prepare

pytestmark = pytest.mark.smoke
SENT = "is not what the trainer's process sent"
SAID = {
    "advantages": ("inputs", f"advantages of the rollout's prompt . sample . {SENT}"),
    "exchanged advantages": ("inputs", f"advantages of the rollout's prompt . sample . {SENT}"),
    "old log-probabilities": ("inputs", f"old_log_probs of the rollout's prompt . sample . {SENT}"),
    "advantages on their way": ("inputs", f"advantages of prompt .* sample . {SENT}"),
    "exchanged advantages on their way": ("inputs", f"advantages of prompt .* sample . {SENT}"),
    "old log-probabilities on their way": ("inputs", f"old_log_probs of prompt .* sample . {SENT}"),
    "tokens on their way": ("inputs", f"input_ids of prompt .* sample . {SENT}"),
    "tokens of the model": ("inputs", "the model was run with another input_ids than prompt .* has"),
    "temperature of the model": ("inputs", "the model was run with another temperature than prompt .* has"),
    "a setting": ("settings", "worker.rollout.temperature was 1.0 when the trainer was wrapped, and is 1.3"),
}
"""Tampering -> the aspect in which the second rollout's first step departs, and how."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("inputs")
    prepare(folder)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", "--standalone"]
    paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [*command, str(Path(__file__).with_name("tampered_inputs.py")), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    return found


def ended(measured: dict[str, Any], mode: str, name: str) -> dict[str, Any]:
    return next(one for one in measured["runs"] if (one["mode"], one["name"]) == (mode, name))


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("name", SAID)
def test_an_input_that_was_touched_ends_the_step_that_has_it(measured: dict[str, Any], mode: str, name: str) -> None:
    run, (aspect, detail) = ended(measured, mode, name), SAID[name]
    assert (name, run["steps"]) == (name, [0, 1])
    assert re.match(f"optimizer step 2 departs from the plan in its {aspect}: {detail}", run["said"]), run["said"]


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_an_estimator_that_was_replaced_is_told_from_the_rewards(measured: dict[str, Any], mode: str) -> None:
    run = ended(measured, mode, "the estimator")
    assert run["said"].startswith("optimizer step 0 departs from the plan in its advantages: completion ")
    assert run["steps"] == []


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_a_run_that_nothing_has_a_hand_in_ends_well(measured: dict[str, Any], mode: str) -> None:
    run = ended(measured, mode, "nothing")
    assert (run["said"], run["steps"]) == ("", [0, 1, 2, 3])


def test_an_estimator_of_ones_own_is_refused_by_name_and_used_where_it_is_allowed(measured: dict[str, Any]) -> None:
    own = measured["own"]
    assert own["reasons"].keys() == {"advantages"}
    assert "of_ones_own.<locals>.own" in own["reasons"]["advantages"]
    for mine, native in zip(own["advantages"][0], measured["native"][0], strict=True):
        assert mine == pytest.approx(1.05 * native, rel=1e-6)
    assert any(own["advantages"][0])
