"""A user's own training script, which knows nothing of BatchBridge: `python launched_script.py FOLDER [--wrapped]`.

With --wrapped it wraps its trainer by hand; with --none it builds no trainer; with --copy one that is named as R1-V's,
on transformers' own class. With --killed the second rank is killed after its third optimizer step; with --resume the
run goes on from its newest checkpoint. With --limited-memory the CPU's memory has a limit, a stand-in. Any
other word is its own setting.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from batchbridge import wrap
from batchbridge.kit import device_memory
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.limited_memory import LimitedMemory
from batchbridge_trl.testing import scripted_trainer


class Killed(TrainerCallback):
    """The end of the second rank, as the kernel ends what takes too much memory."""

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]  # transformers' own
        if state.global_step == 3 and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, *words: str) -> None:
    if "--none" in words:
        return
    if "--copy" in words:
        copy = type("Qwen2VLGRPOTrainer", (Trainer,), {})
        copy(tiny_policy(), TrainingArguments(str(folder / "out"))).train()
    long = bool({"--killed", "--resume"} & {*words})
    options = {"num_train_epochs": 2 if long else 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer = scripted_trainer(folder / "out", **options)
    if long:
        trainer.args.save_strategy, trainer.args.save_steps = SaveStrategy.STEPS, 2
    if "--killed" in words:
        trainer.add_callback(Killed())
    if "--wrapped" in words:
        wrap(trainer, mode="observe", ledger=folder / "by_hand")
    if "--limited-memory" in words:
        memory = LimitedMemory(1 << 30)
        device_memory.memory_of = lambda device: memory
    trainer.train(resume_from_checkpoint="--resume" in words or None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    leave()
