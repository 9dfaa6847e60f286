"""A user's own training script that logs to TensorBoard, trackio and W&B, none of which reaches a network:
`python reporting_script.py FOLDER`. It knows nothing of BatchBridge; the ranks are whatever its launcher started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
os.environ |= {
    "ACCELERATE_USE_CPU": "true",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TENSORBOARD_LOGGING_DIR": str(FOLDER / "tensorboard"),
    "TRACKIO_DIR": str(FOLDER / "trackio"),
    "WANDB_MODE": "offline",
    "WANDB_DIR": str(FOLDER / "wandb"),
    "WANDB_SILENT": "true",
    "HF_HUB_OFFLINE": "1",
}
(FOLDER / "wandb").mkdir(exist_ok=True)

import torch
import wandb

torch.set_num_threads(1)

from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.testing import scripted_trainer


def main() -> None:
    trainer = scripted_trainer(
        FOLDER / "out",
        num_train_epochs=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_strategy="steps",
        logging_steps=1,
        report_to=["tensorboard", "trackio", "wandb"],
        project="batchbridge",
        run_name="reported",
    )
    trainer.train()
    if wandb.run is not None:
        wandb.finish()


if __name__ == "__main__":
    main()
    leave()
