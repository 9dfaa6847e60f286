"""What measuring a wrapped `GRPOTrainer` costs: the share of an optimizer step that goes into its checks.

    python benchmarks/check_cost.py [--write] [--json FILE]

The time inside every function that measures (hooks on the log-probabilities and on one parameter, the comparison with
the objective's own gradient, the comparison with the plan) over the time of the steps that they are part of, generation
left out; also with completions so short that nearly nothing else is computed. --write makes check_cost.json and .md
beside this file. A report, never a gate. Needs what trl_step_time.py needs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trl_step_time as steps

from batchbridge import measuring, wrap
from batchbridge_trl.recording import StepLog

MEASURING: tuple[tuple[type, str], ...] = (
    (measuring.Tap, "watch"),
    (measuring._MicroBatch, "arrive"),
    (measuring.Witness, "arrive"),
    (StepLog, "measure"),
    (StepLog, "check"),
)
ROWS = {
    # name: completions per optimizer step, tokens per micro-batch, tokens of every completion
    "64 completions of 150 tokens": (64, 608, 150),
    "16 completions of 150 tokens": (16, 608, 150),
    "16 completions of 8 tokens": (16, 160, 8),
}
STEPS = 4


def measure(completions: int, budget: int, tokens: int) -> dict[str, float]:
    spent = {"checks": 0.0, "depth": 0.0}

    def timed(native: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any, **options: Any) -> Any:
            spent["depth"] += 1
            started = time.perf_counter()
            try:
                return native(*arguments, **options)
            finally:
                spent["depth"] -= 1
                if not spent["depth"]:  # one measured function inside another counts once
                    spent["checks"] += time.perf_counter() - started

        return function

    own = steps.MEAN
    native = [(owner, name, getattr(owner, name)) for owner, name in MEASURING]
    options = argparse.Namespace(
        device="cpu", lengths="equal", completions=completions, micro=4, passes=1, steps=STEPS, tokens_per_device=budget
    )
    steps.MEAN = tokens
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = steps.build(Path(folder), options)
            wrap(trainer, tokens_per_device=budget)
            for owner, name, function in native:
                setattr(owner, name, timed(function))
            seconds = step_seconds(trainer, spent)
    finally:
        steps.MEAN = own
        for owner, name, function in native:
            setattr(owner, name, function)
    checks = spent["checks"]
    return {
        "milliseconds_a_step": 1e3 * checks / STEPS,
        "step_milliseconds": 1e3 * seconds / STEPS,
        "share": checks / seconds,
    }


def step_seconds(trainer: Any, spent: dict[str, float]) -> float:
    """Seconds of all steps but the first, from the forward pass to the end of the update; generation left out."""
    clock = {"total": 0.0, "generation": 0.0, "started": 0.0}
    generate = trainer._generate

    def timed_generate(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        output = generate(*arguments, **options)
        clock["generation"] += time.perf_counter() - started
        return output

    trainer._generate = timed_generate

    class Clock(steps.transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock["started"], clock["generation"] = time.perf_counter(), 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:
            if state.global_step == 1:
                spent["checks"] = 0.0
            else:
                clock["total"] += time.perf_counter() - clock["started"] - clock["generation"]

    trainer.add_callback(Clock())
    trainer.train()
    return clock["total"]


def page(result: dict[str, Any]) -> Iterator[str]:
    """The table, a line at a time."""
    versions = ", ".join(f"{name} {said}" for name, said in result["versions"].items())
    yield "# What measuring a step costs in TRL\n"
    yield f"Written by `python benchmarks/check_cost.py --write`: {result['machine']}; {versions};"
    yield f"4 layers of width 256, one process, {STEPS} steps a row.\n"
    yield "| optimizer step | its time, ms | of which checks, ms | share |"
    yield "|---|---|---|---|"
    for name, row in result["rows"].items():
        cells = (name, f"{row['step_milliseconds']:.0f}", f"{row['milliseconds_a_step']:.1f}", f"{row['share']:.2%}")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make check_cost.json and check_cost.md")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), default=tuple(ROWS))
    options = parser.parse_args()
    result = {
        "machine": steps.machine(argparse.Namespace(device="cpu")),
        "versions": {name: steps.installed(name) for name in ("batchbridge", "trl", "transformers", "torch")},
        "rows": {name: measure(*ROWS[name]) for name in options.rows},
    }
    for name, row in result["rows"].items():
        print(f"{name}: {row['share']:.2%} ({row['milliseconds_a_step']:.1f} of {row['step_milliseconds']:.0f} ms)")
    here = Path(__file__)
    if options.write:
        here.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        here.with_suffix(".md").write_text("\n".join(page(result)) + "\n", encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
