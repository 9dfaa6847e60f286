"""The run of `batchbridge try trl`: `python -m batchbridge_trl.on_cpu FOLDER`, a plain training program.

It knows nothing of being wrapped: `batchbridge run` stands before it. Afterwards it holds the gradient of every
optimizer step, as the optimizer found it, against the float64 oracle.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.kit import TRIAL_FIGURES
from batchbridge_trl.trying import PROMPTS

RUN: Mapping[str, Any] = {
    # 2 completions per device and micro-step, 4 micro-steps per optimizer step, a new rollout every 2 micro-steps.
    "num_generations": 4,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": 2,
    "num_train_epochs": 1,
    "loss_type": "dapo",
    "seed": 42,
}


def main(folder: Path) -> None:
    """Trains the tiny policy, and writes the figures of its gradients."""
    import transformers
    from transformers.trainer_callback import PrinterCallback

    from batchbridge_trl.testing import Captured, scripted_trainer

    transformers.logging.set_verbosity_error()
    trainer = scripted_trainer(folder / "out", prompts=PROMPTS, **RUN)
    trainer.remove_callback(PrinterCallback)
    captured = Captured(trainer.model)
    trainer.add_callback(captured)
    trainer.train()
    (folder / TRIAL_FIGURES).write_text(json.dumps(gradients(trainer, captured)), encoding="utf-8")


def gradients(trainer: Any, captured: Any) -> dict[str, str]:
    """The largest distance of a step's gradient from the oracle's, on the completions that this run trained."""
    from batchbridge.kit import read_steps
    from batchbridge_trl.testing import gradient_errors

    request = trainer.batchbridge.request
    errors = gradient_errors(captured, request.spec, records=read_steps(request.ledger))
    return {
        "gradient error, worst step": f"{max(error.error for error in errors):.1e}",
        "bar (max of 1e-6 and 3 x float32 noise)": f"{max(error.bar for error in errors):.1e}",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
