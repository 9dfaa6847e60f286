"""What speaks for the code of a run, where packages beside TRL are of a release that nobody recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batchbridge import CannotAttach
from batchbridge.kit.deepspeed import BeforeUpdate
from batchbridge.kit.proven import evidence, records
from batchbridge_trl.proven import CODE, DEEPSPEED

ALONE = replace(CODE, packages=(DEEPSPEED,))


def test_a_deepspeed_that_nobody_recorded_is_measured_and_not_refused(tmp_path: Path) -> None:
    engine = tmp_path / "runtime" / "engine.py"
    engine.parent.mkdir()
    engine.write_text("class DeepSpeedEngine:\n    def step(self):\n        return self._take_model_step()\n")
    found = evidence(ALONE, {"deepspeed": tmp_path})
    assert (found.grade, found.control) == ("measured", ())
    assert "deepspeed runtime/engine.py: DeepSpeedEngine.step" in found.loss


def test_an_engine_without_a_place_before_its_update_is_refused() -> None:
    with pytest.raises(CannotAttach, match="no place right before its update"):
        BeforeUpdate(object(), lambda: None)


def test_deepspeed_counts_for_runs_that_use_it_alone() -> None:
    assert DEEPSPEED not in CODE.used().packages
    assert DEEPSPEED in CODE.used(("deepspeed",)).packages
    assert records(CODE.home)["deepspeed"].tested == ("0.16.8", "0.19.6")
