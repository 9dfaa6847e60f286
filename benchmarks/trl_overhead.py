"""What wrapping costs: step time of the same GRPOTrainer run, wrapped and unwrapped, alternating in one process.

    python benchmarks/trl_overhead.py [--pairs 5] [--width 128] [--layers 4] [--json FILE]

All completions have the same length, so that cutting by length, which makes wrapped runs faster elsewhere, gains
nothing here. Prints the median ratio wrapped / unwrapped of the time inside `training_step`, generation excluded, with
its spread. A report, never a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
warnings.filterwarnings("ignore", category=FutureWarning)  # deprecations inside TRL and transformers

import torch
import transformers
from transformers.trainer_callback import PrinterCallback

from batchbridge import wrap
from batchbridge.testing.tiny import EOS, FIRST_WORD, WORDS, Script, tiny_policy
from batchbridge_trl.testing import scripted_trainer

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


@dataclass(frozen=True)
class EqualLengths(Script):
    """Completions of one length (tokens)."""

    tokens: int = 128

    def completion(self, prompt: int, sample: int) -> list[int]:
        return [FIRST_WORD + (prompt * 7 + sample * 11 + k * 5) % WORDS for k in range(self.tokens - 1)] + [EOS]

    def prompt(self, index: int) -> str:
        return f"w{index % WORDS} w{index // WORDS}"


def step_seconds(wrapped: bool, folder: Path, options: argparse.Namespace) -> list[float]:
    """Seconds of each optimizer step of one run, generation excluded, the first (warm-up) left out."""
    script = EqualLengths(longest=options.tokens, tokens=options.tokens, empty=frozenset())
    trainer: Any = scripted_trainer(
        folder,
        script=script,
        prompts=16,
        policy=tiny_policy(layers=options.layers, width=options.width),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_steps=options.steps + 1,
        loss_type="dapo",
    )
    trainer.remove_callback(PrinterCallback)
    clock = {"step": 0.0, "generation": 0.0}
    generate = trainer._generate_and_score_completions

    def timed_generate(inputs: Any) -> Any:
        started = time.perf_counter()
        output = generate(inputs)
        clock["generation"] += time.perf_counter() - started
        return output

    trainer._generate_and_score_completions = timed_generate
    if wrapped:
        wrap(trainer, ledger=folder / "ledger")
    step, seconds = trainer.training_step, []

    def timed_step(*arguments: Any) -> Any:
        started = time.perf_counter()
        loss = step(*arguments)
        clock["step"] += time.perf_counter() - started
        return loss

    trainer.training_step = timed_step

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds.append(clock["step"] - clock["generation"])
            clock.update(step=0.0, generation=0.0)

    trainer.add_callback(Clock())
    trainer.train()
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="alternating pairs of runs")
    parser.add_argument("--steps", type=int, default=3, help="timed optimizer steps in a run")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of every completion")
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    ratios, native = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            medians = {
                wrapped: statistics.median(step_seconds(wrapped, Path(folder) / f"{pair}-{wrapped}", options))
                for wrapped in order
            }
            ratios.append(medians[True] / medians[False])
            native.append(medians[False])
            print(f"pair {pair}: native {medians[False]:.3f} s, wrapped {medians[True]:.3f} s, ratio {ratios[-1]:.3f}")
    result = {
        "ratio_median": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "native_step_seconds": statistics.median(native),
        "pairs": options.pairs,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
        "versions": {name: version(name) for name in ("batchbridge", "trl", "transformers", "torch")},
    }
    print(
        f"ratio {result['ratio_median']:.3f} (from {min(ratios):.3f} to {max(ratios):.3f}) over {options.pairs} pairs; "
        f"native step {result['native_step_seconds']:.3f} s"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
