"""Ranks that train one share of a rollout together: those of a ring (`ds.ring_attn_size`), each with a part of every
packed row, and those of a tensor-parallel group (`ds.tensor_parallel_size`), each with a part of every large weight.

OpenRLHF puts the log-probabilities of the parts together on each rank of a ring, so that all of them have the same
loss; backward adds up over the ring what each rank's own part gets. DeepSpeed averages over all ranks, rings included.
The ranks of a tensor-parallel group each have whole rows and the whole loss, and each other's part of a gradient does
not concern them: DeepSpeed averages over the ranks that have the same part.
Completions, denominators and the ledger go by ring or group, gradients by rank.

Source: openrlhf 0.10.4 to 0.11.2 ring_attn_utils, DeepspeedStrategy.setup_distributed, RayActorGroup; deepspeed 0.19.6
engine._configure_tensor_parallel_states, module_inject/layers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.workers import TrainedRow


@dataclass(frozen=True)
class RankRings:
    """The rings or tensor-parallel groups of one run, as this rank sees them. size: ranks of one, 1 without; they stand
    one after the other. world: all training processes. rank: this one among them. averaged: ranks that DeepSpeed
    averages a gradient over."""

    size: int
    world: int
    rank: int
    averaged: int

    @classmethod
    def of(cls, trainer: Any) -> RankRings:
        """The rings of an `ActorPPOTrainer`."""
        import torch

        ring, tensor = int(trainer.args.ds.ring_attn_size), int(trainer.args.ds.tensor_parallel_size)
        world = int(torch.distributed.get_world_size())
        return cls(ring * tensor, world, int(torch.distributed.get_rank()), averaged=world // tensor)

    @property
    def replicas(self) -> int:
        """Rings: shares of a rollout."""
        return self.world // self.size

    @property
    def replica(self) -> int:
        """The number of this rank's ring."""
        return self.rank // self.size

    @property
    def speaks(self) -> bool:
        """Whether this rank writes down what its ring trained."""
        return self.rank % self.size == 0

    @property
    def writes(self) -> bool:
        """Every rank: those that do not speak have a record without a ledger."""
        return True

    def agree(self, compare: Callable[[], None]) -> None:
        """Runs `compare`, whose gathering has every rank's objections already."""
        compare()

    def lists(self, mine: Sequence[Any]) -> list[list[Any]]:
        """Every rank's list. Collective."""
        import torch

        parts: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(parts, list(mine))
        return parts

    def shares(self, mine: Sequence[Any]) -> list[list[Any]]:
        """Every ring's list, which all of its ranks have. Raises `CannotAttach` on every rank where they do not.
        Collective."""
        parts = self.lists(mine)
        for rank, part in enumerate(parts):
            first = rank - rank % self.size
            if part != parts[first]:
                name, what = ("sequence_parallel", "ring") if self.averaged == self.world else (TENSOR, "group")
                raise CannotAttach({name: f"ranks {first} and {rank} of one {what} hold other completions"})
        return parts[:: self.size]

    def gather(self, mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Every ring's rows once, and every rank's objections: tuples that begin with None. Collective."""
        return [
            one for rank, part in enumerate(self.lists(mine)) for one in part if rank % self.size == 0 or one[0] is None
        ]

    def differences(self, mine: Sequence[TrainedRow]) -> list[str]:
        """Rows that this rank measured otherwise than the first rank of its ring, whose rows stand for the ring's.
        Collective where there are rings."""
        if self.size == 1:
            return []
        seen = [(row.position, row.sample, row.tokens, row.weight) for row in mine]
        first = self.lists(seen)[self.rank - self.rank % self.size]
        alike = len(first) == len(seen) and all(
            one[:3] == other[:3]
            and _agree(one[3], other[3], row.tolerance)
            and (self.speaks or row.departure <= row.tolerance)
            for one, other, row in zip(seen, first, mine, strict=True)
        )
        return [] if alike else [f"rank {self.rank} measured other weights than the first rank of its ring or group"]


def _agree(one: float | None, other: float | None, tolerance: float) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other, rel_tol=tolerance)


TENSOR = "tensor_parallel"
"""The refusal's name."""


def averaging(trainer: Any) -> Any:
    """The process group over which DeepSpeed averages this rank's part of the weights; None: all ranks."""
    tensor = int(trainer.args.ds.tensor_parallel_size)
    return None if tensor == 1 else trainer.strategy.ds_device_mesh["dp"].get_group()


def hold_cutting(trainer: Any) -> None:
    """Refusal (`CannotAttach`) of a model whose weights DeepSpeed cuts by their names alone: without transformers' own
    plan of which layers are cut it does not know which whole weights get a part of their gradient on each rank."""
    if int(trainer.args.ds.tensor_parallel_size) == 1:
        return
    try:
        from deepspeed.module_inject.auto_tp import AutoTP
        from deepspeed.module_inject.tp_plan_converter import TPPlanConverter
        from deepspeed.runtime.tensor_parallel.config import _get_hf_tp_plan

        adds_up = hasattr(AutoTP, "register_replicated_grad_hooks")  # not in every release that has a plan's converter
        planned = TPPlanConverter.convert(_get_hf_tp_plan(trainer.actor.model.module)) if adds_up else None
    except (ImportError, ValueError):
        planned = None
    if planned is None:
        reason = (
            "transformers has no tensor-parallel plan for this model, or deepspeed does not follow it and guesses by "
            "names which layers to cut: ds.tensor_parallel_size 1"
        )
        raise CannotAttach({TENSOR: reason})


def hold_gathering(trainer: Any) -> None:
    """The check (`CannotAttach`) that the gradient of what OpenRLHF gathers over a ring is added up over its ranks: the
    loss of each of them is the whole one, and DeepSpeed divides by their number, too."""
    if int(trainer.args.ds.ring_attn_size) == 1:
        return
    import torch
    from openrlhf.models import ring_attn_utils

    group = trainer.strategy.ring_attn_group
    size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    device = next(trainer.actor.parameters()).device
    parts = torch.arange(2.0 * size, device=device)[:, None]
    own = parts[2 * rank : 2 * rank + 2].clone().requires_grad_()
    gathered = ring_attn_utils.all_gather(own, group)
    (gradient,) = torch.autograd.grad(gathered, own, (1.0 + parts) * (1 + rank))
    want = (1.0 + parts[2 * rank : 2 * rank + 2]) * sum(range(1, size + 1))
    sound = torch.tensor([float(torch.equal(gathered, parts) and torch.equal(gradient, want))], device=device)
    torch.distributed.all_reduce(sound, op=torch.distributed.ReduceOp.MIN)
    if not sound:
        reason = (
            "what is gathered over the ranks of a ring is not whole, or its gradient is not added up over them "
            "(flash_attn.utils.distributed.all_gather), so that the update would be another one: ds.ring_attn_size 1, "
            "or the flash-attn that openrlhf requires"
        )
        raise CannotAttach({"sequence_parallel": reason})
