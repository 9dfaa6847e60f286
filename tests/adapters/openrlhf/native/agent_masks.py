"""What `test_agents_openrlhf` runs, one process per rank: `gradients.py` over completions in which an environment's
tokens stand, which an agent's action mask leaves out; padded and packed.

    torchrun --nproc_per_node 2 agent_masks.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gradients
import torch
from gradients import CASES, PROMPTS, Bench, spec_of, wrapped

from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import relative_error
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.conversations import Conversations, WholeConversations
from batchbridge_on_cpu.openrlhf.workers import save_policy

OBJECTIVES = ("token_mean", "sequence_mean, k2 and entropy")
TRAINERS: tuple[tuple[int, bool, dict[str, Any], str], ...] = (
    # ZeRO stage, the trainer's own dynamic batches, settings, split
    (2, False, {}, "fixed 2"),
    (3, True, {"ds.packing_samples": True, "ds.attn_implementation": "sdpa"}, "budget 60"),
)


class Talking(Bench):
    """Completions of conversations."""

    def __init__(self, folder: Path, policy: Path) -> None:
        super().__init__(folder, policy)
        self.script = Conversations()


def trained_whole(bench: Bench, results: list[dict[str, Any]]) -> None:
    """Adds to each result how far the oracle is from what it says where the environment's tokens are trained."""
    whole = Talking(bench.folder, bench.saved)
    whole.script = WholeConversations()
    for result in results:
        case = CASES[result["case"]]
        plan = Plan(spec_of(case, result["split"]), PROMPTS)
        members = [(member.prompt, member.sample) for member in plan.step(result["step"]).members]
        apart = relative_error(whole.expected(case, members)[0], bench.expected(case, members)[0])
        result["whole"] = apart / max(1e-6, 3 * result["floor"])


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Talking(folder, policy)
    found: list[dict[str, Any]] = []
    for zero, dynamic, settings, split in TRAINERS:
        gradients.SHARED.update(settings)
        trainer = bench.trainer(zero, dynamic)
        found += wrapped(bench, trainer, zero, dynamic, (split,), OBJECTIVES)
        del trainer
    trained_whole(bench, found)
    if bench.rank == 0:
        torch.save({"wrapped": found, "ranks": bench.ranks}, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
