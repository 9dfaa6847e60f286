"""Records which gradients each DeepSpeed applies where every `backward` counts as the last one of a step.

    python tests/adapters/openrlhf/record_deepspeed.py TREES [--write]

TREES: a folder with one folder for each release, `TREES/0.18.3/deepspeed` being its package (its tag's tree with
deepspeed, accelerator, op_builder and version.txt; nothing is built). Needs torch and what DeepSpeed itself needs. Each
release trains in a process of its own, one weight per micro-batch, with one rank on CPU: three steps of three backward
passes, accumulation 1. --write replaces the rows of these releases in
deepspeed_gradients.json; without it nothing is written. Exit code 1: at least one figure that differs from the record.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from batchbridge_openrlhf.on_cpu import cpu

RECORD = Path(__file__).parent / "deepspeed_gradients.json"
STEPS, MICRO_BATCHES = 3, 3
SETUPS: tuple[dict[str, Any], ...] = (
    *({"stage": stage, "offload": False, "float32_accumulation": False} for stage in (1, 2, 3)),
    *({"stage": stage, "offload": True, "float32_accumulation": False} for stage in (1, 2)),
    *({"stage": stage, "offload": False, "float32_accumulation": True} for stage in (1, 2)),
)
"""float32_accumulation: bf16 parameters whose gradients are added up in float32; else all is float32."""


def measured(setup: dict[str, Any]) -> list[list[float]] | str:
    """Of each step, how often its update has each micro-batch's gradient, or the error that ended the run."""
    import deepspeed
    import torch

    dtype = torch.bfloat16 if setup["float32_accumulation"] else torch.float32
    model = torch.nn.Linear(STEPS * MICRO_BATCHES, 1, bias=False).to(dtype)
    torch.nn.init.zeros_(model.weight)
    zero: dict[str, Any] = {"stage": setup["stage"]}
    if setup["offload"]:
        zero["offload_optimizer"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "gradient_clipping": 0.0,  # newer releases clip at 1.0 by themselves
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if setup["float32_accumulation"]:
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    found, before = [], torch.zeros(STEPS * MICRO_BATCHES)
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        weight = next(engine.module.parameters())
        for step in range(STEPS):
            for micro in range(MICRO_BATCHES):
                row = torch.zeros(1, STEPS * MICRO_BATCHES, dtype=dtype)
                row[0, step * MICRO_BATCHES + micro] = 1.0
                engine.backward(engine(row).sum())
            engine.step()
            with deepspeed.zero.GatheredParameters([weight], enabled=setup["stage"] == 3):
                now = weight.detach().float().flatten().clone()
            found.append((before - now).tolist())  # SGD at 1.0 on gradients of 1
            before = now
    except (TypeError, FileNotFoundError) as error:  # before 0.16 ZeRO-3 on CPU calls numactl, which may be missing
        return f"{type(error).__name__}: {error}"
    return found


def one_release() -> None:
    """Prints the figures of the DeepSpeed in reach, one line of them as JSON."""
    single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port()}
    os.environ.update(single | {cpu.FLOAT32: "1", "TORCHDYNAMO_DISABLE": "1"})
    cpu.start()
    rows = [{**setup, "applied": measured(setup)} for setup in SETUPS]
    print(json.dumps(rows), flush=True)


def release(tree: Path) -> list[dict[str, Any]]:
    """The figures of the release in `tree`."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, __file__, "--one"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"deepspeed {tree.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    return [{"deepspeed": tree.name, **row} for row in json.loads(line)]


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _age(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_release()
        return 0
    trees = sorted(args.trees.iterdir(), key=lambda tree: _age(tree.name))
    rows = [row for tree in trees for row in release(tree)]
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else []
    if args.write:
        measured_now = {row["deepspeed"] for row in rows}
        rows += [row for row in recorded if row["deepspeed"] not in measured_now]
        lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=lambda row: _age(row["deepspeed"])))
        RECORD.write_text(f"[\n{lines}\n]\n")
        return 0
    differ = [row for row in rows if row not in recorded]
    for row in differ:
        print("not recorded:", row)
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
