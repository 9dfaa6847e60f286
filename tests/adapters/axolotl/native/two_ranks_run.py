"""Two ranks of axolotl's trainer under DDP, for `test_axolotl`: torchrun --nproc_per_node 2 two_ranks_run.py FOLDER

Rank 0 leaves what it measured in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch
import trl
from axolotl.core.trainers.grpo.args import AxolotlGRPOConfig
from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

from batchbridge import wrap
from batchbridge_trl.testing import Captured, gradient_errors, scripted_trainer

torch.set_num_threads(1)
trl.GRPOTrainer, trl.GRPOConfig = AxolotlGRPOTrainer, AxolotlGRPOConfig


def main(folder: Path) -> None:
    """Trains, and writes errors over their bars."""
    run = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 1}
    built = wrap(scripted_trainer(folder / "out", alternate_lr_scheduler_type="rex", **run))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    if built.accelerator.is_main_process:
        errors = gradient_errors(captured, plan.spec, plan=plan)
        found = {
            "class": [type(built).__name__, type(built.model_wrapped).__name__],
            "steps": [built.state.global_step, plan.total_optimizer_steps, len(errors)],
            "errors": [one.error / one.bar for one in errors],
        }
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    built.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
