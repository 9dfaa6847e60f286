"""What `test_rings_openrlhf` runs, one process per rank: `gradients.py` with ring attention (`ds.ring_attn_size` 2)
over packed samples and conversations, whose environment's tokens an agent's mask leaves out.

    torchrun --nproc_per_node 2 rings.py FOLDER
"""

from __future__ import annotations

from batchbridge_on_cpu.openrlhf import ring

ring.start()  # before OpenRLHF is imported

# isort: split
import os
import sys
from pathlib import Path
from typing import Any

import gradients
import torch
from agent_masks import Talking
from gradients import CASES, EVERYWHERE, KL_COEFFICIENT, PROMPTS, natively, spec_of, tampered, wrapped
from openrlhf.models import ring_attn_utils

from batchbridge.errors import CannotAttach
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import relative_error
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_policy
from batchbridge_openrlhf.engine import install, remove

RING = 2
gradients.SHARED.update(
    {"ds.packing_samples": True, "ds.attn_implementation": ring.ATTENTION, "ds.ring_attn_size": RING}
)
TRAINERS: tuple[tuple[int, bool, tuple[str, ...]], ...] = (
    # ZeRO stage, the trainer's own dynamic batches, splits
    (2, False, ("fixed 2",)),
    (3, True, ("budget 24",)),
)


class Bench(Talking):
    """A rollout is dealt out to rings; all ranks of one have the same completions."""

    def fill(self, *given: Any, **options: Any) -> None:
        ranks = self.rank, self.ranks
        self.rank, self.ranks = self.rank // RING, self.ranks // RING
        try:
            super().fill(*given, **options)
        finally:
            self.rank, self.ranks = ranks


def first_step(bench: Bench, trainer: Any) -> float:
    """The error of a wrapped run's first step, over the bar."""
    case = CASES["token_mean"]
    spec = spec_of(case, "fixed 2")
    plan = Plan(spec, PROMPTS)
    install(trainer, bench.orders(spec, settings={**case.loss, KL_COEFFICIENT: case.coefficient}))
    bench.fill(trainer, plan, 0)
    bench.run(trainer, 0.0)
    remove(trainer)
    members = [(member.prompt, member.sample) for member in plan.step(0).members]
    expected, floor, _ = bench.expected(case, members)
    return relative_error(bench.gradients[0], expected) / max(1e-6, 3 * floor)


def alone(tensor: Any, group: Any) -> Any:
    """The control of gathering: of the gradient that arrives at the gathered tensor a rank keeps its own part, and
    nothing is added up over the ring."""
    whole = ring.all_gather(tensor.detach(), group)
    start, length = torch.distributed.get_rank(group) * len(tensor), len(tensor)
    return torch.cat([whole[:start], tensor, whole[start + length :]])


def controls(bench: Bench, trainer: Any) -> dict[str, Any]:
    """What is said of gathering that does not add gradients up; and the first step's error where rows see only what
    their own rank has of them."""
    spec = spec_of(CASES["token_mean"], "fixed 2")
    native = ring_attn_utils.all_gather
    ring_attn_utils.all_gather = alone
    try:
        install(trainer, bench.orders(spec))
        said = "wrapped"
    except CannotAttach as refused:
        said = str(refused.reasons.get("sequence_parallel"))
    ring_attn_utils.all_gather = native
    remove(trainer)
    gather = ring.all_gather

    def blind(tensor: Any, group: Any) -> Any:
        """Keys and values of this rank's part alone; log-probabilities as they are."""
        found = gather(tensor, group)
        if tensor.dim() == 2:
            return found
        start = torch.distributed.get_rank(group) * len(tensor)
        return torch.cat([found[:start] * 0, tensor, found[start + len(tensor) :] * 0])

    ring.all_gather = blind
    apart = first_step(bench, trainer)
    ring.all_gather = gather
    return {"gathering": said, "blind": apart}


def other_completions(bench: Bench, trainer: Any) -> str:
    """What a run says in which the ranks of a ring hold the rollout in other orders."""
    spec = spec_of(CASES["token_mean"], "fixed 2")
    install(trainer, bench.orders(spec))
    bench.fill(trainer, Plan(spec, PROMPTS), 0)
    if bench.rank % RING:
        trainer.replay_buffer.items.reverse()
    try:
        bench.run(trainer, 0.0)
        said = "trained"
    except CannotAttach as refused:
        said = str(refused.reasons.get("sequence_parallel"))
    gradients.clean(trainer)
    return said


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Bench(folder, policy)
    found: dict[str, Any] = {"wrapped": [], "natively": {}}
    for zero, dynamic, splits in TRAINERS:
        trainer = bench.trainer(zero, dynamic)
        name = f"ZeRO-{zero}{', dynamic' if dynamic else ''}"
        found["natively"][name] = natively(bench, trainer, zero, dynamic)
        found["wrapped"] += wrapped(bench, trainer, zero, dynamic, splits, EVERYWHERE)
        if zero == 2:
            found["tampered"] = tampered(bench, trainer, "enforce")
            found["controls"] = controls(bench, trainer)
            found["other completions"] = other_completions(bench, trainer)
        del trainer
    if bench.rank == 0:
        torch.save({**found, "ranks": bench.ranks}, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
