"""Whether the weight probe accepts the installed TRL's losses, whatever its version, and still refuses a wrong one.

    python tests/upstream/probe_trl.py        after `nox -s upstream`, by the session upstream_probe

One row per loss type: wrapped with allow=("unproven_code",), so that code that is not known is measured, and trained
for two optimizer steps in which every weight is measured again. Exit code 1: a loss is refused, or seven times a loss
is not.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is marked experimental
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from trl import GRPOTrainer

from batchbridge import CannotAttach, wrap
from batchbridge.errors import BatchDrift
from batchbridge.kit.proven import UNPROVEN
from batchbridge_trl.meaning import loss_types
from batchbridge_trl.testing import scripted_trainer

OWN_SETTINGS: Mapping[str, Mapping[str, Any]] = {"luspo": {"importance_sampling_level": "sequence"}}
"""What a loss type is meant to be used with."""


def refused(trainer: Any, *, train: bool) -> str | None:
    """Why a trainer is not wrapped, or stops in training; None where it is and does not."""
    try:
        wrap(trainer, allow=(UNPROVEN,))
        if train:
            with contextlib.redirect_stdout(io.StringIO()):  # TRL prints its metrics
                trainer.train()
    except (CannotAttach, BatchDrift) as error:
        return " ".join(str(error).split())
    return None


def main() -> int:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in loss_types(trl.__version__):
            trainer = scripted_trainer(Path(folder) / name, loss_type=name, max_steps=2, **OWN_SETTINGS.get(name, {}))
            why = refused(trainer, train=True)
            grade = "refused" if why else trainer.batchbridge.evidence.text()
            print(f"{name:8} {why or grade}")
            bad += why is not None
        native = GRPOTrainer._compute_loss
        GRPOTrainer._compute_loss = lambda self, *given, **named: 7 * native(self, *given, **named)
        try:
            why = refused(scripted_trainer(Path(folder) / "seven"), train=False)
        finally:
            GRPOTrainer._compute_loss = native
        print(f"seven times a loss: {'refused, as it must be' if why and 'weight_probe' in why else why or 'ACCEPTED'}")
        bad += why is None or "weight_probe" not in why
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
