"""The contract of adapters that attach, on real `GRPOTrainer`s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from batchbridge.testing import AttachContract
from batchbridge_trl.testing import scripted_trainer


def sevenfold(trainer: Any) -> None:
    native = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: 7 * native(model, inputs)


def mean_of_rows(trainer: Any) -> None:
    native = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: native(model, inputs) / len(inputs["completion_ids"])


class TestTrlTrainers(AttachContract):
    wrong_losses: ClassVar = {"seven times the loss": sevenfold, "divided by its rows": mean_of_rows}

    @pytest.fixture
    def build(self, tmp_path: Path) -> Callable[[], Any]:
        """A trainer of its own folder for each call."""
        folders = (tmp_path / f"trainer{number}" for number in range(99))
        return lambda: scripted_trainer(next(folders), loss_type="dapo", max_steps=3)
