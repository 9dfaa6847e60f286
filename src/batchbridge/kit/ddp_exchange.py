"""The exchange of gradients between DDP's ranks, where a communication hook makes it another one than torch's own.

torch's two hooks that send gradients in a half type round each rank's gradient once and each partial sum of ranks; that
is allowed for. Any other hook's effect is not known, PowerSGD's not even bounded: it approximates.
Source: torch 2.13.0 distributed/algorithms/ddp_comm_hooks/default_hooks.py, nn/parallel/distributed.py. Imports torch;
knows no framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

_DEFAULT = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_EXACT = (f"{_DEFAULT}.allreduce_hook",)
HALF = {f"{_DEFAULT}.fp16_compress_hook": torch.float16, f"{_DEFAULT}.bf16_compress_hook": torch.bfloat16}
"""The hooks that send gradients in a half type, and that type."""


@dataclass(frozen=True)
class Exchange:
    """The exchange of one step's gradients. kind: the type that they are sent in, where it is not their own. ranks:
    that add up in it. unknown: hooks whose effect is not known."""

    kind: torch.dtype | None = None
    ranks: int = 1
    unknown: tuple[str, ...] = ()

    def lost_of(self, shape: torch.Size) -> float:
        """The size of what a sketch loses where elements are nearer to zero than the type can say, before the ranks'
        division: half of the smallest step of each element, of every rank and every sum."""
        if self.kind is None:
            return 0.0
        step = float(torch.finfo(self.kind).smallest_normal * torch.finfo(self.kind).eps)
        return step * self.ranks * math.sqrt(2 * self.ranks * shape.numel())


def exchange_of(wrapped: Any) -> Exchange:
    """The exchange that a model wrapped in DDP makes now; of any other module torch's own."""
    found = [_name_of(hook) for hook, _ in getattr(wrapped, "_comm_hooks", ())]
    kinds = {HALF[name] for name in found if name in HALF}
    unknown = tuple(name for name in found if name not in HALF and name not in _EXACT)
    ranks = torch.distributed.get_world_size(getattr(wrapped, "process_group", None)) if found else 1
    return Exchange(kinds.pop() if len(kinds) == 1 else None, ranks, unknown)


def _name_of(hook: Any) -> str:
    return (
        f"{getattr(hook, '__module__', type(hook).__module__)}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
    )
