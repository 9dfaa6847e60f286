"""The script of docs/launch.md, which knows nothing of BatchBridge: TRL's trainer with a tiny model and scripted
rollouts, on a CPU."""

from __future__ import annotations

import os

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

from batchbridge_trl.testing import scripted_trainer

torch.set_num_threads(1)
trainer = scripted_trainer("out", num_train_epochs=1, per_device_train_batch_size=2, gradient_accumulation_steps=2)
trainer.train()
