"""Time of a GRPOTrainer's optimizer step, wrapped with a token budget against unwrapped, alternating in one process.

    python benchmarks/trl_step_time.py [--lengths lognormal|equal] [--prompt-tokens 256] [--processes 2] [--json FILE]
    python benchmarks/trl_step_time.py --write

Completions are scripted and each run trains the same ones; what is timed is `training_step` and the forward-only
passes, generation left out. Prints the median ratio wrapped / unwrapped with its spread, and how far apart the first
gradients are. --sharded shards the model over the processes, on a CPU on gloo. --memory also runs either side once in
processes of its own and compares peak memory (the largest of the ranks; on CPU: of the whole process, with a glibc that
keeps nothing it could give back). --largest-budget doubles the budget until a step
fits no longer, or until it holds a whole step. --write runs every row of `ROWS`, or those of --rows (with --pairs 0
their memory alone), and writes trl_step_time.json and .md beside this file. --wrap NAME=VALUE gives `wrap` a further
argument. A report, never a gate. With --device cuda the model has the shape of Qwen2-0.5B, random, in bf16; the tables
of a GPU are gpu.py's. Needs what trl_runs.py does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import trl_runs as runs

TOKENS_OF_ONE = runs.PROMPT + runs.MEAN
"""Tokens of one completion with its prompt, where all have one length."""
EQUAL = ("--lengths", "equal", "--tokens-per-device", str(TOKENS_OF_ONE))
"""Micro-batches of one completion, a quarter of a native one: without padding, smaller ones take less memory and, on a
CPU, less time. The last row is the control: native micro-batches of one completion, too."""

FREE = ("--completions", "32", "--wrap", "padding=free")
"""Completions end to end, each prompt once."""
ROWS: tuple[tuple[str, ...], ...] = (
    ("--memory",),
    ("--processes", "2"),
    ("--processes", "2", "--sharded", "zero2", "--memory"),
    ("--processes", "2", "--sharded", "zero3", "--memory"),
    ("--processes", "2", "--sharded", "fsdp2", "--memory"),
    ("--passes", "2"),
    (*EQUAL, "--completions", "32", "--steps", "2", "--pairs", "9", "--memory"),
    (*EQUAL, "--completions", "32", "--steps", "6", "--pairs", "7", "--processes", "2"),
    (*FREE, "--memory"),
    (*FREE, "--prompt-tokens", "256", "--memory"),
    (*FREE, "--prompt-tokens", "512", "--memory"),
    (*FREE, "--processes", "2"),
    (*FREE, "--lengths", "equal", "--tokens-per-device", str(2 * TOKENS_OF_ONE), "--steps", "2", "--pairs", "5"),
    (*FREE, "--lengths", "equal", "--prompt-tokens", "256", "--memory"),
    ("--prompt-tokens", "256", "--completions", "32"),
    ("--prompt-tokens", "512", "--completions", "32"),
    (*EQUAL, "--micro", "1", "--completions", "32", "--steps", "2", "--pairs", "7"),
)
"""What `--write` measures: the options of each row. Equal lengths take more steps: the ratio is near 1."""
NOT_MEASURED = ("json", "only", "memory", "largest_budget", "write", "rows")
LATER = {"prompt_tokens": runs.PROMPT, "wrap": []}
"""Options that came after the first records, and their defaults, which those were measured with: recorded where they
differ."""


def setting_of(options: argparse.Namespace) -> runs.Setting:
    """The run that the options ask for."""
    names = ("device", "lengths", "prompt_tokens", "completions", "micro", "passes", "steps", "sharded")
    cuda = options.device == "cuda"
    made = runs.Setting(
        **{name: getattr(options, name) for name in names},
        policy="0.5B" if cuda else "small",
        bf16=cuda,
        checkpointing=cuda,
        wrap=dict(argument(text) for text in options.wrap),
    )
    return replace(made, tokens_per_device=options.tokens_per_device or made.native_tokens)


def argument(text: str) -> tuple[str, Any]:
    """NAME=VALUE; a value that is not JSON is text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    # Not ru_maxrss: Linux lets a child begin with its parent's, and this one's parent has run both sides.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def largest_of_ranks(count: int) -> int:
    """The largest of the processes' counts, on every one. Collective."""
    if not torch.distributed.is_initialized():
        return count
    whole = torch.tensor([count], dtype=torch.int64)
    torch.distributed.all_reduce(whole, torch.distributed.ReduceOp.MAX)
    return int(whole.item())


def measure(options: argparse.Namespace) -> dict[str, Any]:
    said = {name: value for name, value in vars(options).items() if name not in NOT_MEASURED}
    found = runs.pairs(setting_of(options), options.pairs, say)
    return {
        **{name: value for name, value in found.items() if name in RECORDED},
        "options": {name: value for name, value in said.items() if LATER.get(name, ...) != value},
        "machine": runs.machine(options.device),
        "versions": runs.versions(),
    }


RECORDED = ("ratio_median", "ratio_spread", "native_step_seconds", "wrapped_step_seconds", "gradients_apart")
RECORDED += ("padding_alone_would_allow",)


def largest_budget(setting: runs.Setting) -> int:
    """The largest of the budgets 1024, 2048, ... (tokens per device) with which steps fit into the device's memory."""
    fits, budget = 0, runs.CAP
    whole = setting.completions * (setting.prompt_tokens + setting.script.longest_of(setting.completions))
    while fits < whole:
        with tempfile.TemporaryDirectory() as folder:
            try:
                runs.run(True, Path(folder), replace(setting, tokens_per_device=budget))
            except torch.OutOfMemoryError:
                break
        fits, budget = budget, 2 * budget
    return fits


def say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
"""What a launcher tells a process: children that it starts have a launcher of their own."""


def alone(wrapped: bool, options: argparse.Namespace) -> int:
    """Peak memory (bytes) of one side in a process of its own, without what glibc would keep for later."""
    words = [option for option in sys.argv[1:] if option not in ("--memory", "--largest-budget")]
    side = "wrapped" if wrapped else "native"
    plain = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    child = subprocess.run(
        [sys.executable, __file__, *words, "--only", side],
        check=True,
        capture_output=True,
        text=True,
        env={**plain, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )
    return int(child.stdout.split()[-1])


def write(pairs: int, steps: int, again: Sequence[int] | None) -> None:
    """Measures the rows `again` (None: every one), keeps the others as they were, and writes both files."""
    here = Path(__file__)
    results = [] if again is None else json.loads(here.with_suffix(".json").read_text())
    results += [{} for _ in ROWS[len(results) :]]
    for row, words in enumerate(ROWS):
        if again is not None and row not in again:
            continue
        said = ("--device", "cpu", "--pairs", str(pairs), "--steps", str(steps), *words)
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "result.json"
            subprocess.run([sys.executable, __file__, *said, "--json", str(file)], check=True)
            found = json.loads(file.read_text())
            on = {"measured_on": runs.measured_on(), "command": " ".join(said), "load_average": load}
            results[row] = {**on, **found} if pairs else results[row] | found
        here.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    here.with_suffix(".md").write_text("\n".join(page(results)) + "\n", encoding="utf-8")


def page(results: list[dict[str, Any]]) -> Iterator[str]:
    """The table, a line at a time."""
    results = [row for row in results if row]  # some have not been measured yet
    first = results[0]
    versions = ", ".join(f"{name} {said}" for name, said in first["versions"].items())
    yield "# Time of an optimizer step in TRL\n"
    loads = [row["load_average"] for row in results]
    yield f"Written by `python benchmarks/trl_step_time.py --write --device cpu`: {first['machine']}, load average"
    yield f"{min(loads):.1f} to {max(loads):.1f} when a row began; {versions}."
    yield "Rows are measured one by one, and again where they change (`--rows`): not all in one run of it."
    yield "Wrapped with a token budget against unwrapped, alternating in one process; rows have this script's options;"
    yield "where they give no budget it is what a native micro-batch holds, its padding included."
    yield "A ratio below 1 is faster. Gradients: the first step's, wrapped minus native, over the native norm.\n"
    yield "| options | wrapped / native: median (spread) | native step, s | gradients apart | memory | most tokens |"
    yield "|---|---|---|---|---|---|"
    for row in results:
        low, high = row["ratio_spread"]
        peak = row.get("peak_bytes")
        cells = (
            f"`{row['command']}`",
            f"{row['ratio_median']:.3f} ({low:.3f} to {high:.3f})",
            f"{row['native_step_seconds']:.2f}",
            f"{row['gradients_apart']:.1e}",
            f"{peak['wrapped'] / peak['native']:.3f} of native" if peak else "",
            f"{row['largest_budget']} tokens" if "largest_budget" in row else "",
        )
        yield f"| {' | '.join(cells)} |"


def told(result: dict[str, Any], pairs: int) -> str:
    """What was measured, in a line."""
    parts = []
    if pairs:
        low, high = result["ratio_spread"]
        parts = [
            f"ratio {result['ratio_median']:.3f} (from {low:.3f} to {high:.3f}) over {pairs} pairs",
            f"native step {result['native_step_seconds']:.3f} s",
            f"gradients {result['gradients_apart']:.1e} apart",
            f"padding alone would allow {result['padding_alone_would_allow']:.2f}",
        ]
    parts += [f"peak bytes {result['peak_bytes']}"] if "peak_bytes" in result else []
    parts += [f"largest budget {result['largest_budget']}"] if "largest_budget" in result else []
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", choices=("lognormal", "equal"), default="lognormal")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="data-parallel processes on this machine")
    parser.add_argument("--sharded", choices=(*runs.ZERO, "fsdp2"), help="how the model is sharded over the processes")
    parser.add_argument(
        "--completions", type=int, default=64, help=f"completions per optimizer step, groups of {runs.GROUP}"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=runs.PROMPT,
        help=f"of each prompt, at least {runs.PROMPT}; groups of {runs.GROUP} completions share theirs",
    )
    parser.add_argument("--micro", type=int, default=4, help="native per_device_train_batch_size")
    parser.add_argument(
        "--tokens-per-device",
        type=int,
        help="budget of the wrapped run; default: what a native micro-batch holds",
    )
    parser.add_argument(
        "--passes", type=int, default=1, help="num_iterations; more than 1 scores old log-probabilities"
    )
    parser.add_argument("--pairs", type=int, default=5, help="alternating pairs of runs; 0: memory alone")
    parser.add_argument("--steps", type=int, default=2, help="timed optimizer steps in a run")
    parser.add_argument(
        "--wrap", nargs="+", default=[], metavar="NAME=VALUE", help="further arguments of wrap(), of any JSON or text"
    )
    parser.add_argument("--memory", action="store_true", help="also compare peak memory")
    parser.add_argument("--largest-budget", action="store_true", help="also find the largest budget that fits")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--write", action="store_true", help="measure every row, and write the table")
    parser.add_argument("--rows", type=int, nargs="+", help="with --write: these rows of the table only, from 0")
    parser.add_argument("--only", choices=("native", "wrapped"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prompt_tokens < runs.PROMPT:
        parser.error(
            f"--prompt-tokens {options.prompt_tokens}: at least {runs.PROMPT}, which tell a prompt from others"
        )
    setting = setting_of(options)
    options.tokens_per_device = setting.tokens_per_device
    if options.write:
        write(options.pairs, options.steps, options.rows)
        return
    if options.processes > 1 and "RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.processes}"]
        raise SystemExit(subprocess.call([sys.executable, *launcher, __file__, *sys.argv[1:]]))
    if options.device == "cpu":
        torch.set_num_threads(1)
        os.environ["ACCELERATE_USE_CPU"] = "true"
        if options.sharded == "fsdp2":
            from sharded_on_cpu import shard_on_the_cpu

            shard_on_the_cpu()
        elif options.sharded:
            from sharded_on_cpu import zero_on_the_cpu

            zero_on_the_cpu()
    if options.only:
        with tempfile.TemporaryDirectory() as folder:
            runs.run(options.only == "wrapped", Path(folder), setting, gradient=False)
        say(str(largest_of_ranks(peak_bytes(options.device))))
        return
    result = measure(options) if options.pairs else {}
    if options.memory and os.environ.get("RANK", "0") == "0":
        result["peak_bytes"] = {"native": alone(False, options), "wrapped": alone(True, options)}
    if options.largest_budget and options.processes == 1:
        result["largest_budget"] = largest_budget(setting)
    say(told(result, options.pairs))
    if options.json and os.environ.get("RANK", "0") == "0":
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.processes > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
