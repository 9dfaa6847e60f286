"""Two ranks of ms-swift's trainer under DDP, for its tests: torchrun --nproc_per_node 2 two_ranks_run.py FOLDER [MODE]

Rank 0 leaves what it measured in FOLDER. A run in mode "verify" is held against the completions of its own ledger, and
runs that train otherwise come after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scripted import SCRIPT, other_order, swift_trainer

from batchbridge import BatchDrift, wrap
from batchbridge.contract.reading import Mode
from batchbridge.ledger import read_steps
from batchbridge_trl.testing import Captured, gradient_errors

torch.set_num_threads(1)


RUN: dict[str, Any] = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 1}


def tampered(folder: Path, tamper: Callable[[Any], None]) -> str | None:
    """The aspect in which a run that is verified departs."""
    built = wrap(swift_trainer(folder, loss_type="dapo", **RUN), mode="verify")
    tamper(built)
    try:
        built.train()
    except BatchDrift as drift:
        return drift.aspect
    return None


def louder(built: Any) -> None:
    """The loss of the second rank is a little larger."""
    native = built.compute_loss
    times = 1.01 if built.accelerator.process_index else 1.0
    built.compute_loss = lambda *given, **options: native(*given, **options) * times


def main(folder: Path, mode: Mode) -> None:
    """Trains, and writes errors over their bars."""
    built = wrap(swift_trainer(folder / "out", loss_type="dapo", **RUN), mode=mode, ledger=folder / "ledger")
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    built.accelerator.wait_for_everyone()
    ways = {"the loss on the second rank": louder, "the order": other_order} if mode == "verify" else {}
    said = {name: tampered(folder / str(number), tamper) for number, (name, tamper) in enumerate(ways.items())}
    if built.accelerator.is_main_process:
        held: dict[str, Any] = {"plan": plan} if mode == "enforce" else {"records": read_steps(folder / "ledger")}
        errors = gradient_errors(captured, plan.spec, script=SCRIPT, **held)
        found = {
            "class": [type(built).__name__, type(built.model_wrapped).__name__],
            "steps": [built.state.global_step, plan.total_optimizer_steps, len(errors)],
            "errors": [one.error / one.bar for one in errors],
            "tampered": said,
        }
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    built.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "verify" if sys.argv[2:] == ["verify"] else "enforce")
