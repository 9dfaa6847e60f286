"""A release of next week: the installed TRL under the number 1.17.0, with a setting more and a loss that is written
otherwise, is wrapped and measured without a release of ours; one with another training step is refused by its name."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trl

NEXT = "1.17.0"
LOSS = "    def _compute_loss(self, model, inputs):\n"
WRITTEN_OTHERWISE = f"{LOSS}        inputs = dict(inputs)\n"
MISREAD = f"{LOSS}        inputs = dict(inputs, advantages=1.01 * inputs['advantages'])\n"
STEP = "    def training_step(self, model, inputs, num_items_in_batch):\n"
ANOTHER_STEP = f"{STEP}        self.steps_seen = self._step\n"
RUN = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.ledger import read_steps
from batchbridge_trl.testing import scripted_trainer

folder = Path(sys.argv[1])
found = {}
for name, options in json.loads(sys.argv[2]).items():
    try:
        trainer = wrap(scripted_trainer(folder / name, num_train_epochs=1, **options), ledger=folder / f"{name} ledger")
        evidence = trainer.batchbridge.evidence
        found[name] = {"grade": evidence.grade, "loss": evidence.loss, "version": trainer.batchbridge.framework_version}
        found[name]["notes"] = trainer.batchbridge.notes
        trainer.train()
        found[name]["steps"] = len(list(read_steps(folder / f"{name} ledger")))
    except (BatchDrift, CannotAttach) as refused:
        found[name] = {**found.get(name, {}), "refused": type(refused).__name__, "why": str(refused)}
print(json.dumps(found))
"""
CASES = {"as it is": {}, "the new setting": {"answers_twice": True}, "dapo": {"loss_type": "dapo"}}


def run(folder: Path, changes: dict[str, str], cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What comes of each case under a copy of the installed TRL. changes: of grpo_trainer.py, text to text."""
    site = folder / "site"
    shutil.copytree(str(trl.__path__[0]), site / "trl", ignore=shutil.ignore_patterns("__pycache__"))
    installed = importlib.metadata.version("trl")
    there = importlib.metadata.distribution("trl").read_text("METADATA")
    assert there is not None
    metadata = site / f"trl-{NEXT}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(there.replace(f"\nVersion: {installed}\n", f"\nVersion: {NEXT}\n"), encoding="utf-8")
    setting = "    num_iterations: int = field(\n"
    changed = {
        "grpo_config.py": {setting: f"    answers_twice: bool = field(default=False)\n{setting}"},
        "grpo_trainer.py": changes,
    }
    for name, edits in changed.items():
        file = site / "trl" / "trainer" / name
        text = file.read_text(encoding="utf-8")
        for old, new in edits.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "ACCELERATE_USE_CPU": "true", "TRL_EXPERIMENTAL_SILENCE": "1"}
    words = [sys.executable, "-c", RUN, str(folder), json.dumps(cases)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run(tmp_path_factory.mktemp("next"), {LOSS: WRITTEN_OTHERWISE}, CASES)


@pytest.mark.parametrize("case", ["as it is", "dapo"])
def test_a_loss_that_is_written_otherwise_is_measured_and_trains(unchanged: dict[str, Any], case: str) -> None:
    found = unchanged[case]
    assert (found["version"], found["grade"], "refused" in found) == (NEXT, "measured", False), found
    assert any("_compute_loss" in one for one in found["loss"])
    assert found["steps"] > 0


def test_a_setting_that_no_table_has_is_said_where_the_run_sets_it(unchanged: dict[str, Any]) -> None:
    assert "refused" not in unchanged["the new setting"]
    assert any(note.startswith("answers_twice: ") for note in unchanged["the new setting"]["notes"])
    assert not any("answers_twice" in note for note in unchanged["as it is"]["notes"])


def test_a_loss_that_weighs_tokens_one_percent_too_high_is_refused(tmp_path: Path) -> None:
    found = run(tmp_path, {LOSS: MISREAD}, {"dapo": CASES["dapo"]})["dapo"]
    assert found["refused"] == "CannotAttach"
    assert "weight_probe" in found["why"]


def test_another_training_step_is_refused_by_its_name(tmp_path: Path) -> None:
    found = run(tmp_path, {STEP: ANOTHER_STEP}, {"as it is": {}})["as it is"]
    assert found["refused"] == "CannotAttach"
    assert "unproven_code" in found["why"]
    assert "GRPOTrainer.training_step" in found["why"]
