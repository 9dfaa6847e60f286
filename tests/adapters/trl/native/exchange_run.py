"""What `test_exchange` runs under torchrun, one process per rank: real trainers, scripted rollouts, gloo.

    torchrun --nproc_per_node 2 exchange_run.py FOLDER

Every rank leaves in FOLDER what it received of each rollout, counted where torch exchanges it, and what it trained.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from two_ranks import SPLITS, build, errors_of

from batchbridge import wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl import rows
from batchbridge_trl.exchange import CompletionPlaces, RowRoute
from batchbridge_trl.rows import TrlRolloutRows

CASES = (
    "1x2, generation above accumulation, two passes, kl",
    "1x3, steps straddle rollouts, seven prompts",
    "24 tokens, two passes, kl",
)
STEPS = 6


class Counted:
    """What this rank received of every rollout, and which of its completions it trained."""

    def __init__(self) -> None:
        self.bytes = 0
        self._of: dict[int, dict[str, Any]] = {}
        self._trained: dict[int, set[int]] = {}

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Counts while it lasts."""
        share_out, assemble, native = TrlRolloutRows.share_out, rows.assemble, torch.distributed.all_to_all_single

        def counted(output: torch.Tensor, *others: Any, **more: Any) -> Any:
            self.bytes += output.numel() * output.element_size()
            return native(output, *others, **more)

        def watched(rollout: TrlRolloutRows, *others: Any) -> None:
            held, before = set(rollout.slots), self.bytes
            share_out(rollout, *others)
            of = self._of.setdefault(rollout.index, {"rollout": rollout, "arrived": [], "bytes": 0, "held": 0})
            of["arrived"] += sorted(rollout.slots.keys() - held)
            of["bytes"] += self.bytes - before
            of["held"] = len(rollout.slots)

        def assembled(picks: Any, *others: Any) -> Any:
            for rollout, position in (pick for pick in picks if pick is not None):
                self._trained.setdefault(rollout.index, set()).add(position)
            return assemble(picks, *others)

        TrlRolloutRows.share_out, rows.assemble = watched, assembled
        torch.distributed.all_to_all_single = counted
        try:
            yield
        finally:
            TrlRolloutRows.share_out, rows.assemble = share_out, assemble
            torch.distributed.all_to_all_single = native

    def told(self, rank: int) -> list[dict[str, Any]]:
        """Of each rollout, plain values: for the process that compares."""
        return [
            {
                "arrived": of["arrived"],
                "trained": sorted(self._trained.get(index, ())),
                "bytes": of["bytes"],
                "held": of["held"],
                "columns": {
                    name: (column.element_size(), column.dim() > 1 and column.shape[1] > 1)
                    for name, column in of["rollout"].tensors.items()
                },
                "prompt_tokens": of["rollout"].prompt_tokens,
                "completion_tokens": of["rollout"].completion_tokens,
                "generated": [place for place, by in enumerate(of["rollout"].places.generated_by) if by == rank],
            }
            for index, of in sorted(self._of.items())
        ]


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Tampering: every row goes to every rank, as before rows were shared out."""
    native = CompletionPlaces.share_out

    def everything(places: CompletionPlaces, wanted: Any, rank: int) -> RowRoute | None:
        everyone = set(range(len(places.generated_by)))
        return native(places, [everyone for _ in wanted], rank)

    CompletionPlaces.share_out = everything
    try:
        yield
    finally:
        CompletionPlaces.share_out = native


@contextlib.contextmanager
def swapped() -> Iterator[None]:
    """Tampering: what came of equally long tensors lies in the opposite order."""
    native = rows.move

    def reverse(route: RowRoute, *others: Any) -> dict[int, torch.Tensor]:
        arrived = native(route, *others)
        by_size: dict[int, list[int]] = {}
        for position, tensor in arrived.items():
            by_size.setdefault(len(tensor), []).append(position)
        return {
            position: arrived[other]
            for positions in by_size.values()
            for position, other in zip(positions, reversed(positions), strict=True)
        }

    rows.move = reverse
    try:
        yield
    finally:
        rows.move = native


def run(folder: Path, name: str, tampered: Callable[[], Any] = contextlib.nullcontext) -> dict[str, Any]:
    """A case of `CASES`: gradient errors of its first steps, and what this rank received."""
    arguments = {"loss_type": "grpo", "max_steps": STEPS, **SPLITS[name]}
    budget = arguments.pop("tokens_per_device", None)
    built, counted = wrap(build(folder, **arguments), tokens_per_device=budget), Counted()
    with tampered(), counted.counting():
        errors = errors_of(built, tiny_policy(seed=1) if arguments.get("beta") else None)
    return {"errors": errors, "rollouts": counted.told(built.accelerator.process_index)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {name: run(folder / "out", name) for name in CASES}
    found["whole"] = run(folder / "out", CASES[0], whole)
    found["swapped"] = run(folder / "out", CASES[0], swapped)
    (folder / f"exchange-{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")
    leave()
