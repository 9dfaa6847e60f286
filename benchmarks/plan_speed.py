"""How fast a plan is: finding a place in 10^10 prompts, and planning a whole epoch with NumPy.

    python benchmarks/plan_speed.py [--json FILE] [--write]

Times are CPU seconds of this process. Seeking is timed over places drawn at random, best of five, with the most memory
that it holds. A whole epoch is planned step by step as a trainer would ask for it, in portions of 64 steps, best of
three. `--write` puts table and figures into `plan_speed.md` and `plan_speed.json` beside this file. Goals: a place in
50 microseconds, 10^7 completions per second. A report, never a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
import tracemalloc
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  # what is measured imports it when it is first asked; importing is not planning

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology

RESULTS = Path(__file__).with_suffix(".md")


def spec(shuffle: Any) -> Spec:
    """1024 prompts in groups of 8, steps of 1024 completions: eight steps per rollout."""
    return Spec(
        topology=Topology(world_size=64),
        rollout=Rollout(prompts_per_rollout=1024, completions_per_prompt=8),
        optimizer_step=OptimizerStep(completions_per_step=1024, rollout_shuffle=shuffle),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=2),
        order=Order(seed=1),
    )


def seek_seconds(prompts: int) -> tuple[float, int]:
    """Seconds per seek, best of five, and the most bytes that seeking held."""
    plan = Plan(spec("none"), prompts)
    places = [random.randrange(1, plan.total_optimizer_steps) for _ in range(2000)]
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for place in places:
            plan.seek(place)
        best = min(best, (time.process_time() - started) / len(places))
    tracemalloc.start()
    for place in places[:200]:
        plan.seek(place)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return best, held


def completions_per_second(shuffle: Any, prompts: int) -> float:
    """A whole epoch, in portions of 64 steps."""
    plan = Plan(spec(shuffle), prompts)
    steps = plan.optimizer_steps_per_epoch or 0
    started = time.process_time()
    planned = sum(len(plan.members_array(start, min(start + 64, steps))) for start in range(0, steps, 64))
    return planned / (time.process_time() - started)


def page(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    rates = result["epoch_completions_per_second"].items()
    return (
        "# Speed of the plan\n\n"
        f"Written by `{result['command']}`: CPU time; {versions}; {result['machine']}.\n\n"
        "| what | figure |\n|---|---|\n"
        f"| finding a place in 10^10 prompts | {result['seek_microseconds']:.1f} microseconds |\n"
        f"| memory that it holds | {result['seek_bytes']} bytes |\n"
        + "".join(
            f"| an epoch, `rollout_shuffle` {name} | {rate:.2e} completions per second |\n" for name, rate in rates
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--write", action="store_true", help="also write the table beside this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    seek, held = seek_seconds(10**10)
    result = {
        "command": "python benchmarks/plan_speed.py" + (" --write" if options.write else ""),
        "seek_microseconds": 1e6 * seek,
        "seek_bytes": held,
        "epoch_completions_per_second": {
            shuffle: max(completions_per_second(shuffle, 2**20) for _ in range(3))
            for shuffle in ("none", "groups", "completions")
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one used, load average {load:.1f} at the beginning",
        "versions": {"Python": platform.python_version(), "NumPy": version("numpy")},
    }
    print(page(result))
    text = json.dumps(result, indent=2) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    if options.write:
        RESULTS.write_text(page(result), encoding="utf-8")
        RESULTS.with_suffix(".json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
