"""The main job on a real run: train a tiny random policy with TRL's GRPOTrainer, unwrapped and wrapped, and hold both
against the float64 oracle. CPU only, nothing is downloaded; about a minute after installation.

    python examples/quickstart.py
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func, through which the rollouts are scripted
warnings.filterwarnings("ignore", category=FutureWarning)  # deprecations inside TRL and transformers

print("importing torch, transformers and trl ...", flush=True)
started = time.perf_counter()

import transformers
from transformers.trainer_callback import PrinterCallback

from batchbridge import read, wrap
from batchbridge.kit import read_steps
from batchbridge_trl.testing import Captured, gradient_errors, scripted_trainer

transformers.logging.set_verbosity_error()

RUN = {
    # 2 completions per device and micro-step, 4 micro-steps per optimizer step, a new rollout every 2 micro-steps.
    "prompts": 9,
    "num_generations": 4,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": 2,
    "num_train_epochs": 1,
    "loss_type": "dapo",
    "seed": 42,
}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="batchbridge-quickstart-"))
    columns = {}
    for name, mode in (("native TRL", "observe"), ("wrapped", "enforce")):
        trainer = scripted_trainer(folder / mode, **RUN)
        trainer.remove_callback(PrinterCallback)
        if mode == "observe":
            reading = read(trainer)
            print(f"\nbatchbridge check: {reading.framework} {reading.framework_version}, {reading.verdict}")
            for finding in reading.findings:
                print(f"  {finding.code} {finding.severity}: {finding.message}")
        trainer = wrap(trainer, mode=mode, ledger=folder / f"{mode}-ledger")
        captured = Captured(trainer.model)
        trainer.add_callback(captured)
        trainer.train()
        steps = list(read_steps(folder / f"{mode}-ledger"))
        errors = gradient_errors(captured, trainer.batchbridge.request.spec, records=steps)
        first = steps[0]
        trained = zip(first["weights"], first["response_tokens"], strict=True)
        weights = sorted({f"{weight:.5f}" for weight, tokens in trained if tokens})
        columns[name] = {
            "optimizer steps": str(len(steps)),
            "completions in step 0": str(len(first["prompt"])),
            "prompts in step 0": ", ".join(map(str, sorted(set(first["prompt"])))),
            "response tokens in step 0": str(sum(first["response_tokens"])),
            "weight of a token in step 0": " or ".join(weights),
            "share of the prompts trained": f"{len({p for step in steps for p in step['prompt']})} of {RUN['prompts']}",
            "gradient error, worst step": f"{max(error.error for error in errors):.1e}",
            "bar (max of 1e-6 and 3 x float32 noise)": f"{max(error.bar for error in errors):.1e}",
        }
    rows = list(columns["wrapped"])
    width = max(map(len, rows))
    print(f"\n{'':{width}}  " + "  ".join(f"{name:>22}" for name in columns))
    for row in rows:
        print(f"{row:{width}}  " + "  ".join(f"{column[row]:>22}" for column in columns.values()))
    print(
        "\nBoth runs are the real GRPOTrainer with scripted rollouts. The error is norm(g - g*) / norm(g*): g is an\n"
        "optimizer step's raw gradient and g* the float64 oracle's, on the completions that this run trained. In one\n"
        "step every token should weigh the same (token_mean); native TRL normalises each rollout by itself.\n"
        f"{time.perf_counter() - started:.0f} seconds."
    )


if __name__ == "__main__":
    main()
