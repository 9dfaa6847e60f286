"""Where several ranks of a wrapped GRPOTrainer lose time: CPU seconds of every micro-batch on every rank, by cut.

    python benchmarks/trl_balance.py [--processes 2] [--completions 64] [--steps 4] [--write]

The completions, lengths and model are those of `trl_step_time.py`. Ranks exchange metrics in every micro-batch, so that
a turn (one micro-batch of each) takes as long as its slowest rank. A step is cut in two ways: so that the ranks' sums
cost the same (`partition_by_tokens`), and so that their turns do. Time is the CPU time of the training thread, which
waits for nobody: no other process on the machine is in it. --write writes trl_balance.json and .md beside this file. A
report, never a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from trl_runs import GROUP, Setting, build, machine
from trl_step_time import say

import batchbridge_trl.shares
from batchbridge import wrap
from batchbridge.kit import Length, partition_by_tokens
from batchbridge.kit.versions import installed
from batchbridge_trl.compute_time import Clock
from batchbridge_trl.shares import StepShares

NAMES = {
    "native": "unwrapped",
    "sums": "sums of ranks balanced",
    "turns": "turns balanced",
}
"""The ways to cut a step, in words."""


def setting_of(options: argparse.Namespace) -> Setting:
    """The run that the options ask for; unwrapped, it does the same in every step."""
    return Setting(completions=options.completions, steps=1 if options.only == "native" else options.steps)


def by_sums(lengths: Any, *, cost: Any, **options: Any) -> Any:
    """The cut that balances the ranks' sums alone."""
    return partition_by_tokens(lengths, cost=cost.of_sequence, **options)


def native(folder: Path, options: argparse.Namespace) -> list[list[float]]:
    """CPU seconds of this rank by optimizer step and micro-batch, generation left out."""
    trainer = build(folder, setting_of(options))
    found: list[float] = []
    generating = [0.0]
    generate, step = trainer._generate, trainer.training_step

    def generated(*arguments: Any, **keywords: Any) -> Any:
        began = time.thread_time()
        try:
            return generate(*arguments, **keywords)
        finally:
            generating[0] += time.thread_time() - began

    def stepped(*arguments: Any) -> Any:
        began, generating[0] = time.thread_time(), 0.0
        loss = step(*arguments)
        found.append(time.thread_time() - began - generating[0])
        return loss

    trainer._generate, trainer.training_step = generated, stepped
    trainer.train()
    turns = trainer.args.gradient_accumulation_steps
    return [found[start : start + turns] for start in range(0, len(found), turns)]


def padded(batch: list[Length]) -> int:
    """Tokens of a micro-batch, padding included."""
    return len(batch) * (
        max((one.prompt for one in batch), default=0) + max((one.response for one in batch), default=0)
    )


def wrapped(cut: str, folder: Path, options: argparse.Namespace) -> tuple[list[list[float]], dict[str, Any]]:
    """CPU seconds of this rank by optimizer step and micro-batch, and what is known of the last step."""
    if cut == "sums":
        batchbridge_trl.shares.partition_by_cost = by_sums
    trainer = wrap(build(folder, setting_of(options)), tokens_per_device=setting_of(options).native_tokens)
    found: list[list[float]] = []
    said: dict[str, Any] = {}
    forget = StepShares.forget

    def forgotten(shares: StepShares, step: Any) -> None:
        found.append([clock.seconds() for clock in shares.time._clocks])
        lengths = [rows.length(place) for rows, place in shares.completions(step)]
        own = ([lengths[item] for item in batch if item is not None] for batch in shares.own(step))
        said["positions"] = sum(padded(batch) for batch in own)
        said["tokens"] = sum(length.tokens for length in lengths)
        forget(shares, step)

    StepShares.forget = forgotten  # type: ignore[method-assign]  # in a process of its own
    trainer.train()
    return found, said


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One way to cut, on every rank; what rank 0 makes of it."""
    # Waiting costs a thread no CPU time, and other processes' work is not one of its own.
    Clock.moment = staticmethod(time.thread_time)
    with tempfile.TemporaryDirectory() as name:
        if options.only == "native":
            seconds, said = native(Path(name), options), {}
        else:
            seconds, said = wrapped(options.only, Path(name), options)
    # The first step is warming up. Every rank has as many turns in a step as the others.
    everyone = gather_object([(seconds[1:], said)])
    steps = list(zip(*(rank for rank, _ in everyone), strict=True))
    sums = [[sum(rank) for rank in step] for step in steps]
    slowest = [sum(map(max, zip(*step, strict=True))) for step in steps]
    result: dict[str, Any] = {
        "turns": [len(step[0]) for step in steps],
        "mean_seconds": statistics.median(map(statistics.mean, sums)),
        "largest_sum_seconds": statistics.median(map(max, sums)),
        "turns_seconds": statistics.median(slowest),
    }
    if options.only != "native":
        result["padded"] = sum(said["positions"] for _, said in everyone) / everyone[0][1]["tokens"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="data-parallel processes on this machine")
    parser.add_argument("--completions", type=int, default=64, help=f"per optimizer step, groups of {GROUP}")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a wrapped run, after one more")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--only", choices=tuple(NAMES), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    if options.only:
        torch.set_num_threads(1)
        found = measure(options)
        if Accelerator().is_main_process:
            options.json.write_text(json.dumps(found), encoding="utf-8")
        return
    results: dict[str, Any] = {"machine": machine("cpu"), "command": " ".join(sys.argv[1:]), "ways": {}}
    results["versions"] = {name: installed(name) or "not installed" for name in ("trl", "accelerate", "torch")}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.processes}"]
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "found.json"
            words = [*sys.argv[1:], "--only", name, "--json", str(file)]
            environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
            subprocess.run([sys.executable, *launcher, __file__, *words], check=True, env=environment)
            results["ways"][name] = json.loads(file.read_text(encoding="utf-8"))
        say(f"{name}: {results['ways'][name]}")
    text = "\n".join(page(results)) + "\n"
    print(text)
    if options.json:
        options.json.write_text(json.dumps(results), encoding="utf-8")
    if options.write:
        here = Path(__file__)
        here.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        here.with_suffix(".md").write_text(text, encoding="utf-8")


def page(results: dict[str, Any]) -> Iterator[str]:
    """The table, a line at a time."""
    versions = ", ".join(f"{name} {said}" for name, said in results["versions"].items())
    yield "# Balance of an optimizer step over ranks in TRL\n"
    yield f"Written by `python benchmarks/trl_balance.py {results['command']}`: {results['machine']}; {versions}."
    yield (
        "CPU seconds of the training threads in one optimizer step, which waiting and other processes are not part of."
    )
    yield "Turn by turn: of each turn its slowest rank, added up, as ranks wait for each other in every turn. Padded:"
    yield "tokens that are computed for each one that there is.\n"
    yield "| cut | micro-batches | padded | ranks' mean | the rank with most | turn by turn | of unwrapped |"
    yield "|---|---|---|---|---|---|---|"
    base = results["ways"]["native"]["turns_seconds"]
    for name, found in results["ways"].items():
        cells = (
            NAMES[name],
            f"{found['turns'][-1]}",
            f"{found['padded']:.2f}" if "padded" in found else "",
            *(f"{found[key]:.2f}" for key in ("mean_seconds", "largest_sum_seconds", "turns_seconds")),
            f"{found['turns_seconds'] / base:.3f}",
        )
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
