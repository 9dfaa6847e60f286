"""Everything that needs a GPU, in one command: gradients against the oracle, time and memory of a step, cost of checks.

    python benchmarks/gpu.py [--slice-minutes 9] [--only NAME ...] [--again] [--out FOLDER]
    python benchmarks/gpu.py --list | --page
    python benchmarks/gpu.py --device cpu --tiny --out FOLDER

For a device that is lent for minutes, in an environment where nothing can be installed: needs no network, and torch,
transformers, accelerate, trl and pluggy, which may lie on PYTHONPATH as wheels are unpacked. Each call measures what is
missing until its minutes are over, and the next one goes on; all of it takes about 25 minutes on an H200. Every row is
written to gpu.json as soon as it is measured, and the tables to gpu.md at a call's end (--page: only that), in --out,
by default beside this file. Carry the folder along where the next call runs elsewhere; what was measured on another
device, or with other versions, is never mixed in. A row that fails is recorded with its error and not tried again
without --again, which measures the rows of --only (all, without it) anew; a row whose package is not there is recorded
as that, and measured once it is.

--device cpu --tiny runs every row with everything small, to try the command; its figures mean nothing and are never
written beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_page
import slices

HERE = Path(__file__).parent
NEEDS = ("torch", "transformers", "accelerate", "pluggy")
"""What no row does without."""
TRL = ("trl", "datasets")
WHOLE_MINUTES = 25
"""What all rows may take together: a test adds them up."""
FREE: dict[str, Any] = {"wrap": {"padding": "free"}}
"""Completions end to end, each prompt once."""


@dataclass(frozen=True, kw_only=True)
class Measurement(slices.Row):
    """A row. kind: the function of gpu_rows.py that measures it. options: what it is given, of `trl_runs.Setting` and
    of its own; `wrap` has further arguments of `wrap`."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


def rows() -> Iterator[Measurement]:
    """Every row, the most important first. Seconds are those of an H200 whose processor is slow, where it was measured
    there."""
    # The first of a group begins with its imports: twelve seconds or more.
    small = {"policy": "0.5B", "completions": 16, "micro": 4}
    long = small | {"prompt_tokens": 256}
    flash = {"attention": "flash_attention_2", "bf16": True}
    yield gradient("bf16", 24, small | {"bf16": True})
    yield gradient("float32", 12, small)
    yield gradient("bf16, gradient checkpointing", 12, small | {"bf16": True, "checkpointing": True})
    yield gradient("bf16, LoRA", 20, small | {"bf16": True, "lora": True}, "peft")
    yield gradient("bf16, prompts of 256 tokens", 13, long | {"bf16": True})
    yield gradient("bf16, prompts of 256 tokens, no padding", 11, long | {"bf16": True} | FREE)
    yield gradient("float32, prompts of 256 tokens, no padding", 11, long | FREE)
    yield gradient("bf16, flash attention", 12, small | flash, "flash_attn")
    drawn = {"policy": "words", "completions": 16, "cap": 64}
    yield Measurement(name="drawn by TRL", group="gradients", seconds=5, needs=TRL, kind="drawn", options=drawn)
    # In a process of its own: what once set TF32 has not taken it back (transformers 5.23, torch 2.11).
    yield gradient("float32, TF32", 24, small | {"tf32": True}, group="tf32")

    usual = {"policy": "0.5B", "micro": 8, "bf16": True, "checkpointing": True}
    large = usual | {"policy": "1.5B"}
    # Why a padded budget was slower than native there: each shape may be prepared anew by cuDNN's attention.
    shapes, without = "0.5B, 64 completions, prompts of 256 tokens", "without cuDNN's attention"
    yield step(f"{shapes}, {without}", 60, usual | {"prompt_tokens": 256, "cudnn": False, "pairs": 2}, group="shapes")
    yield step(shapes, 100, usual | {"prompt_tokens": 256, "pairs": 2}, group="shapes")

    sizes = {"policy": "0.5B", "completions": 64}
    yield cost(150, 74, sizes)
    yield cost(1024, 94, sizes)
    yield framework("trl", 10, sizes, *TRL, group="cost")

    yield step("0.5B, 64 completions", 52, usual)
    yield step("1.5B, 64 completions", 87, large)
    yield step("0.5B, 64 completions of equal lengths", 55, usual | {"lengths": "equal"})
    yield step("0.5B, 64 completions, prompts of 256 tokens, no padding", 44, usual | {"prompt_tokens": 256} | FREE)
    yield step("0.5B, 64 completions, prompts of 512 tokens, no padding", 50, usual | {"prompt_tokens": 512} | FREE)
    yield step("0.5B, 256 completions", 100, usual | {"completions": 256, "pairs": 1})
    yield step("0.5B, 64 completions, prompts of 512 tokens", 50, usual | {"prompt_tokens": 512, "pairs": 1})
    yield step("0.5B, 64 completions, two passes", 60, usual | {"passes": 2, "pairs": 1})
    yield step("0.5B, 64 completions, no checkpointing", 40, usual | {"checkpointing": False})
    yield step("0.5B, 64 completions, LoRA", 45, usual | {"lora": True}, "peft")
    yield step("0.5B, 64 completions, flash attention", 40, usual | flash, "flash_attn")
    yield step("1.5B, 64 completions of equal lengths", 50, large | {"lengths": "equal", "pairs": 1})
    yield step("1.5B, 256 completions", 140, large | {"completions": 256, "steps": 1, "pairs": 1})

    for stage in ("zero2", "zero3"):
        name = f"0.5B, 64 completions, DeepSpeed ZeRO-{stage[-1]}"
        options = usual | {"sharded": stage, "pairs": 1, "steps": 4}  # DeepSpeed keeps some memory of every run
        yield step(name, 37, options, "deepspeed", group=stage)

    needs, options = (*TRL, "vllm"), drawn | {"vllm": True}
    yield Measurement(name="drawn by vLLM", group="vllm", seconds=90, needs=needs, kind="drawn", options=options)
    yield framework("verl", 40, sizes, "verl", "tensordict", group="verl")


def gradient(
    name: str, seconds: float, options: Mapping[str, Any], *needs: str, group: str = "gradients"
) -> Measurement:
    """A row of the first table."""
    return Measurement(
        name=f"gradient, {name}",
        group=group,
        seconds=seconds,
        needs=(*TRL, *needs),
        kind="gradient",
        options=options,
    )


def cost(tokens: int, seconds: float, options: Mapping[str, Any]) -> Measurement:
    """A row of the table of costs, with completions of so many tokens."""
    options = {**options, "tokens": tokens}
    name = f"checks and ledger, 64 completions of {tokens} tokens"
    return Measurement(name=name, group="cost", seconds=seconds, needs=TRL, kind="cost", options=options)


def framework(name: str, seconds: float, options: Mapping[str, Any], *needs: str, group: str) -> Measurement:
    """A row of the table of frameworks."""
    options = {**options, "tokens": 150, "name": name}
    return Measurement(
        name=f"a step of {name}", group=group, seconds=seconds, needs=needs, kind="framework", options=options
    )


def step(name: str, seconds: float, options: Mapping[str, Any], *needs: str, group: str = "steps") -> Measurement:
    """A row of the table of steps."""
    return Measurement(name=name, group=group, seconds=seconds, needs=(*TRL, *needs), kind="step", options=options)


ROWS = tuple(rows())


def process(options: argparse.Namespace, results: slices.Results) -> int:
    """What a process does that measures: its rows, one after the other. Returns its exit code."""
    by_name = {row.name: row for row in ROWS}
    try:
        import gpu_rows
        import torch

        if any("trl" in by_name[name].needs for name in options.process):
            from trl import GRPOTrainer  # noqa: F401 - its names are imported when they are asked for
    except Exception:  # no row's fault: none of them could begin
        traceback.print_exc()
        return slices.WRONG_PLACE

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device: --device cpu --tiny --out FOLDER tries the command without one")
        return slices.WRONG_PLACE
    if options.device == "cpu":
        torch.set_num_threads(1)
    names = ("peft", "deepspeed", "vllm", "flash_attn", "verl")
    where = {
        "machine": gpu_rows.runs.machine(options.device),
        "versions": gpu_rows.runs.versions(*(name for name in names if find_spec(name))),
        "tiny": options.tiny,
    }
    if (why := results.refuse(where)) is not None:
        print(why)
        return slices.WRONG_PLACE

    def of(name: str) -> dict[str, Any]:
        row = by_name[name]
        print(slices.BEGINS.format(name), flush=True)
        return gpu_rows.measure(row.kind, row.options, device=options.device, tiny=options.tiny)

    slices.measure(options.process, ROWS, results, options.ends, of)
    return 0


def listed(results: slices.Results) -> Iterator[str]:
    """A line for each row: what it is expected to take, and what is known of it."""
    records = results.rows()
    for row in ROWS:
        record = records.get(row.name, {"status": "missing"})
        lacking = slices.absent(row)
        state = f"{slices.NOT_THERE}: {', '.join(lacking)}" if lacking else record["status"]
        yield f"{slices.expected(row, ROWS, records):5.0f} s  {row.name} ({row.group}): {state}"
    left = slices.missing(ROWS, records)
    yield f"{sum(slices.expected(row, ROWS, records) for row in left):5.0f} s  are left"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="everything small: to try the command on a CPU")
    parser.add_argument("--slice-minutes", type=float, default=9.0, help="of this call, 9 by default")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows, or the rows of these groups")
    parser.add_argument("--again", action="store_true", help="measure rows anew that are there")
    parser.add_argument("--out", type=Path, help="the folder of gpu.json and gpu.md; by default beside this file")
    parser.add_argument("--list", action="store_true", help="the rows, and what is known of them")
    parser.add_argument("--page", action="store_true", help="write gpu.md from gpu.json, and measure nothing")
    parser.add_argument("--process", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.device == "cpu" or options.tiny) and (options.out is None or options.out.resolve() == HERE):
        parser.error("--device cpu and --tiny: their figures are not a GPU's; --out FOLDER, another than this script's")
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu goes with --tiny: the rows' own sizes are a GPU's")
    known = {name for row in ROWS for name in (row.name, row.group)}
    if unknown := sorted(set(options.only or ()) - known):
        parser.error(f"--only: no row or group {', '.join(unknown)}; --list names them")
    return options


def main() -> int:
    options = arguments()
    folder = options.out or HERE
    results = slices.Results(folder / "gpu.json")
    if options.process:
        return process(options, results)
    if options.list:
        print("\n".join(listed(results)))
        return 0
    if options.page:
        gpu_page.write(ROWS, results)
        return 0
    if lacking := [name for name in NEEDS if find_spec(name) is None]:
        print(f"not there: {', '.join(lacking)}. Unpack their wheels into a folder and name it in PYTHONPATH.")
        return 2
    chosen = [row for row in ROWS if not options.only or {row.name, row.group} & set(options.only)]
    if options.again:
        results.change(lambda found: [found["rows"].pop(row.name, None) for row in chosen])

    def command(names: list[str], ends: float) -> list[str]:
        words = ["--device", options.device, *(["--tiny"] if options.tiny else ()), "--out", str(folder)]
        return [sys.executable, "-u", __file__, *words, "--ends", str(ends), "--process", *names]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what measures is ended, too
    code = slices.Slice(
        rows=chosen,
        results=results,
        command=command,
        ends=time.time() + 60 * options.slice_minutes,
        log=folder / "gpu.log",
        say=lambda text: print(text, flush=True),
    ).run()
    with contextlib.suppress(gpu_page.NothingMeasured):
        gpu_page.write(ROWS, results)
    return code


if __name__ == "__main__":
    sys.exit(main())
