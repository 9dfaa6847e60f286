"""One small trained weight of a module that FSDP shards: whole in a forward pass, in pieces before and after.

Source: torch 2.13.0 distributed/fsdp (FSDP1's flat parameters, FSDP2's DTensors). Imports torch; knows no framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from batchbridge.kit.measuring import TOLERANCE, Witness, all_reduce_over, is_blind


class ShardedWeight(ABC):
    """A weight of which every rank holds a piece. name: in the module. witness: of its own gradients in backward."""

    name: str
    witness: Witness

    @abstractmethod
    def gradient(self) -> torch.Tensor | None:
        """The weight's whole gradient as the optimizer will use it; None where it has none. Collective."""

    def objection(self, expected: float) -> str | None:
        """The objection that the gradient is not `expected` times backward's on all ranks; None where it is.
        Collective."""
        return self.witness.compare(self.gradient()).objection(expected)


class WholeWeight(ShardedWeight):
    """A weight whose gradient someone puts together (`whole`), or that no rank shares. all_reduce, apart: see
    `Witness`."""

    def __init__(
        self,
        name: str,
        parameter: torch.Tensor,
        whole: Callable[[torch.Tensor], torch.Tensor | None],
        all_reduce: Callable[[torch.Tensor], object] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.name, self._whole = name, whole
        self.witness = Witness(parameter, all_reduce or all_reduce_over(), apart=apart)

    def gradient(self) -> torch.Tensor | None:
        """The gradient of the whole weight, as in `ShardedWeight`."""
        return self._whole(self.witness.parameter)


def smallest_weight(module: Any) -> ShardedWeight | None:
    """The smallest trained weight of a sharded module that may always have a gradient, where there is one; None where
    nothing is trained, or nothing is sharded."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(module, FullyShardedDataParallel):
        return FlatWeight.smallest(module)
    return DTensorWeight.smallest(module) if hasattr(module, "set_requires_gradient_sync") else None


class DTensorWeight(ShardedWeight):
    """A weight of FSDP2."""

    def __init__(self, module: Any, name: str, parameter: Any) -> None:
        owner, _, attribute = name.rpartition(".")
        self.name, self._parameter = name, parameter
        self.witness = Witness(parameter, all_reduce_over(), inside=(module.get_submodule(owner), attribute))

    @classmethod
    def smallest(cls, module: Any) -> DTensorWeight | None:
        """The smallest weight of a module of DTensors, for `smallest_weight`."""
        chosen = Witness.choose(list(module.named_parameters()))
        return None if chosen is None else cls(module, *chosen)

    def gradient(self) -> torch.Tensor | None:
        """The weight's whole gradient, as in `ShardedWeight`."""
        gradient = self._parameter.grad
        if gradient is None or not hasattr(gradient, "full_tensor"):
            return gradient
        whole: torch.Tensor = gradient.full_tensor()
        return whole


class FlatWeight(ShardedWeight):
    """A weight of FSDP1. handle: FSDP's, of the flat parameter that it is part of. place: its number there."""

    def __init__(self, handle: Any, place: int) -> None:
        flat = handle.flat_param
        self._handle, self._place, self._shape = handle, place, flat._shapes[place]
        attribute, module, owner = flat._param_infos[place]
        self.name = f"{owner}.{attribute}" if owner else str(attribute)
        # The sum over the ranks rounds to the coarser of these.
        kinds = [kind for kind in (flat.dtype, handle._reduce_dtype) if kind is not None]
        self._kind = max(kinds, key=lambda kind: TOLERANCE.get(kind, 0.0))
        # In the place of the weight, which is no one tensor.
        stands = torch.zeros(self._shape, dtype=self._kind, device=handle.device)
        self._sum = all_reduce_over()
        self.witness = Witness(stands, self._sum, inside=(module, attribute))

    @classmethod
    def smallest(cls, root: Any) -> FlatWeight | None:
        """The smallest weight of FSDP1's flat parameters, for `smallest_weight`."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        found: list[tuple[bool, int, Any, int]] = []
        for unit in FullyShardedDataParallel.fsdp_modules(root):
            if (handle := unit._handle) is None:
                continue
            flat = handle.flat_param
            for place, (name, _, owner) in enumerate(flat._param_infos):
                size = flat._shapes[place].numel()
                trained = flat._params[place] if handle._use_orig_params else flat
                if trained.requires_grad and size:
                    found.append((is_blind(f"{owner}.{name}"), size, handle, place))
        if not found:
            return None
        _, _, handle, place = min(found, key=lambda one: one[:2])
        return cls(handle, place)

    def gradient(self) -> torch.Tensor | None:
        """The weight's whole gradient, as in `ShardedWeight`; put together from all ranks' pieces."""
        handle, flat = self._handle, self._handle.flat_param
        whole = torch.zeros(self._shape.numel(), dtype=torch.float64, device=handle.device)
        held = flat._shard_param_infos[self._place]
        gradient = flat._params[self._place].grad if handle._use_orig_params else flat.grad
        if held.in_shard and gradient is not None:
            start = 0 if handle._use_orig_params else held.offset_in_shard
            piece = gradient.detach().flatten()[start : start + held.numel_in_shard]
            begin = held.intra_param_start_idx
            whole[begin : begin + held.numel_in_shard] = piece.to(whole)
        self._sum(whole)
        copies = torch.distributed.get_world_size() // handle.world_size
        return (whole / copies).to(self._kind).view(self._shape)
