"""Two ranks of ms-swift's trainer under DDP, for `test_ms_swift`: torchrun --nproc_per_node 2 two_ranks_run.py FOLDER

Rank 0 leaves what it measured in FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from scripted import SCRIPT, swift_trainer

from batchbridge import wrap
from batchbridge_trl.testing import Captured, gradient_errors

torch.set_num_threads(1)


def main(folder: Path) -> None:
    """Trains, and writes errors over their bars."""
    run = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 1}
    built = wrap(swift_trainer(folder / "out", loss_type="dapo", **run))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    if built.accelerator.is_main_process:
        errors = gradient_errors(captured, plan.spec, plan=plan, script=SCRIPT)
        found = {
            "class": [type(built).__name__, type(built.model_wrapped).__name__],
            "steps": [built.state.global_step, plan.total_optimizer_steps, len(errors)],
            "errors": [one.error / one.bar for one in errors],
        }
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    built.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
