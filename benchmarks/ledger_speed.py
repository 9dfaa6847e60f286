"""How fast the ledger is written and compared. Prints what it measures; nothing is asserted.

    python benchmarks/ledger_speed.py [--completions 1024] [--steps 200]

Writing: time of `Writer.append` per optimizer step, one rank. Comparing: completions per second of `ledger.diff` on one
core, where a step's completions count once, for two ledgers whose lines are the same, whose ranks hold other rows, and
whose floats differ by noise besides. The spread is over the repetitions.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from batchbridge.ledger import Header, StepRecord, Writer, diff, digest_floats, fingerprint, read_steps
from batchbridge.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Spec, Topology
from batchbridge.weights import Normaliser

GROUP = 8  # completions per prompt
TOKENS = 400  # per completion


def spec(completions: int, world_size: int) -> Spec:
    return Spec(
        topology=Topology(world_size=world_size),
        rollout=Rollout(prompts_per_rollout=completions // GROUP, completions_per_prompt=GROUP),
        optimizer_step=OptimizerStep(completions_per_step=completions),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
    )


def record(step: int, rows: list[int], completions: int, noise: float) -> StepRecord:
    """One rank's share `rows` of step `step`; the same values whatever the share."""
    chance = [random.Random(step * completions + row) for row in rows]
    numbers = [(c.randbytes(8).hex(), c.randrange(1, 2000), c.random(), c.gauss(0, 1)) for c in chance]
    return StepRecord(
        step=step,
        epoch=0,
        normaliser=Normaliser(aggregation="token_mean", completions=completions, tokens=1000 * completions, prompts=1),
        learning_rate=1e-6,
        gradient_norm=0.5,
        skipped=False,
        lr_tick=True,
        rollout=[step] * len(rows),
        pass_index=[0] * len(rows),
        prompt=[step * completions // GROUP + row // GROUP for row in rows],
        sample=[row % GROUP for row in rows],
        prompt_fingerprint=[f"{row // GROUP:016x}" for row in rows],
        completion_fingerprint=[text for text, *_ in numbers],
        response_tokens=[tokens for _, tokens, *_ in numbers],
        reward=[reward for *_, reward, _ in numbers],
        advantage=[advantage * (1 + noise * (row % 3)) for (*_, advantage), row in zip(numbers, rows, strict=True)],
        old_logprobs=[text for text, *_ in numbers],
        generated_at_step=[step] * len(rows),
        weights=[1 / (1000 * completions)] * len(rows),
    )


def write(folder: Path, steps: int, completions: int, world_size: int, noise: float = 0.0) -> None:
    for rank in range(world_size):
        rows = list(range(rank, completions, world_size))
        header = Header(
            framework="benchmark",
            framework_version="1",
            mode="observe",
            spec=spec(completions, world_size),
            dataset_size=steps * completions // GROUP,
            world_size=world_size,
            rank=rank,
        )
        with Writer(folder, header) as writer:
            for step in range(steps):
                writer.append(record(step, rows, completions, noise))


def show(name: str, unit: str, values: list[float]) -> None:
    print(f"{name:<58} {statistics.median(values):>12,.1f} {unit}   ({min(values):,.1f} to {max(values):,.1f})")


def timed(function: Callable[[], object], repetitions: int) -> list[float]:
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--completions", type=int, default=1024, help="completions per optimizer step")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps per ledger")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    steps, completions = options.steps, options.completions
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        one = record(0, list(range(completions)), completions, 0.0)
        header = Header(
            framework="benchmark",
            framework_version="1",
            mode="observe",
            spec=spec(completions, 1),
            dataset_size=completions,
            world_size=1,
            rank=0,
        )
        with Writer(base / "writing", header) as writer:
            ready = [StepRecord(**{**vars(one), "step": step}) for step in range(100)]
            times = [timed(lambda r=r: writer.append(r), 1)[0] * 1e3 for r in ready]
        show(f"append one step of {completions} completions", "ms", times)
        ids = list(range(TOKENS))
        values = [0.5] * TOKENS
        for name, call in (("fingerprint", lambda: fingerprint(ids)), ("digest_floats", lambda: digest_floats(values))):
            per_call = [t / 1000 * 1e6 for t in timed(lambda call=call: [call() for _ in range(1000)], 5)]
            show(f"{name} of a list of {TOKENS}", "us", per_call)
        write(base / "a", steps, completions, 2)
        write(base / "same", steps, completions, 2)
        write(base / "noise", steps, completions, 2, noise=1e-8)
        write(base / "ranks", steps, completions, 4)
        write(base / "ranks_noise", steps, completions, 4, noise=1e-8)
        for name, what in (
            ("same", "diff, the same lines"),
            ("noise", "diff, advantages differ by 1e-8"),
            ("ranks", "diff, 2 ranks against 4"),
            ("ranks_noise", "diff, 2 ranks against 4, advantages differ by 1e-8"),
        ):
            assert diff(base / "a", base / name).equal
            times = timed(lambda name=name: diff(base / "a", base / name), options.repetitions)
            show(what, "completions/s", [steps * completions / t for t in times])
        times = timed(lambda: sum(1 for _ in read_steps(base / "a")), options.repetitions)
        show("read_steps, 2 ranks merged", "completions/s", [steps * completions / t for t in times])


if __name__ == "__main__":
    main()
