"""What `test_leftovers_openrlhf` runs, one process per rank: `gradients.py`'s trainer with steps of 8 of a rollout's 12
completions, wrapped by its own configuration.

    torchrun --nproc_per_node 2 leftovers.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gradients
import torch
from gradients import CASES, PROMPTS, Bench

from batchbridge import unwrap, wrap
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import relative_error
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_policy

gradients.SHARED.update({"train.batch_size": 8})


def members_of(plan: Plan, step: int) -> list[tuple[int, int]]:
    return [(member.prompt, member.sample) for member in plan.step(step).members]


def trained(bench: Bench, zero: int) -> dict[str, Any]:
    """Every step of two rollouts: its size, its error, and by how many bars the step misses that openrlhf would make,
    of the leftovers and the next rollout's first completions."""
    trainer = bench.trainer(zero, dynamic=False)
    ledger = bench.folder / f"ledger-{zero}"
    wrap(trainer, ledger=ledger)
    attachment, gradients_ = trainer.batchbridge, []
    plan = attachment.plan
    for rollout in range(2):
        bench.fill(trainer, plan, rollout)
        bench.run(trainer, 0.0)
        gradients_ += bench.gradients
    unwrap(trainer)
    found = {"own": attachment.request.reading.spec.optimizer_step.step_may_span, "left": attachment.left_different}
    steps, case = [], CASES["token_mean"]
    for index, gradient in enumerate(gradients_):
        expected, floor, _ = bench.expected(case, members_of(plan, index))
        steps.append({"error": relative_error(gradient, expected), "bar": max(1e-6, 3 * floor)})
    crossing = plan.spec.replace(**{"optimizer_step.step_may_span": "run"})
    native, floor, _ = bench.expected(case, members_of(Plan(crossing, PROMPTS), 1))
    missed = relative_error(gradients_[1], native) / max(1e-6, 3 * floor)
    torch.distributed.barrier()
    sizes = [len(step["prompt"]) for step in read_steps(ledger)]
    return {**found, "steps": steps, "sizes": sizes, "crossing": missed}


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Bench(folder, policy)
    found = {zero: trained(bench, zero) for zero in (2, 3)}
    if bench.rank == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
