"""Ring attention on the CPU: what OpenRLHF asks of ring_flash_attn and of flash-attn's `all_gather`, over gloo.

OpenRLHF's own slicing of rows over the ranks of a ring, its position numbers, its gathering of log-probabilities and
its loss run as they are. Replaced by what is exact and slow: the attention kernel, here keys and values of all ranks
and torch's attention over them, each query within its own row; and flash-attn's differentiable `all_gather`, whose
backward adds up over the ranks as flash-attn's does. Not shown by it: the kernels of ring_flash_attn and flash-attn.

Source: openrlhf 0.11.2 ring_attn_utils, which names these functions; flash-attn 2.8 utils/distributed.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from batchbridge_on_cpu.openrlhf.attention import instead_of_flash

ATTENTION = "ring_on_cpu"
"""The attention implementation, in place of flash_attention_2."""
_rows: list[Any] = []
"""Of the current forward pass: where rows begin and end in the whole packed row, and the ring's group."""


def modules() -> dict[str, ModuleType]:
    """The modules, by name."""
    ring, distributed = ModuleType("ring_flash_attn"), ModuleType("flash_attn.utils.distributed")
    ring.substitute_hf_flash_attn = substitute_hf_flash_attn  # type: ignore[attr-defined]
    ring.update_ring_flash_attn_params = update_ring_flash_attn_params  # type: ignore[attr-defined]
    distributed.all_gather = all_gather  # type: ignore[attr-defined]
    return {ring.__name__: ring, distributed.__name__: distributed}


def start() -> None:
    """Puts them in place; before OpenRLHF is imported."""
    sys.modules.update(modules())


HOOKS: Mapping[str, Callable[[Any], None]] = instead_of_flash(ATTENTION)
"""For `cpu.start`."""


def substitute_hf_flash_attn(group: Any, heads_k_stride: int = 1) -> None:
    """Adds the attention implementation; rows have no mask but their bounds."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


def update_ring_flash_attn_params(bounds: Any, group: Any) -> None:
    """Says where rows begin and end, padding included, before each forward pass."""
    _rows[:] = [bounds.clone(), group]


def all_gather(tensor: Any, group: Any) -> Any:
    """Every rank's tensor, one behind the other; gradients are added up over the ranks."""
    return _function().apply(tensor, group)


def _function() -> Any:
    import torch
    from torch import distributed

    class Gathered(torch.autograd.Function):  # type: ignore[misc]  # torch is not there where types are checked
        @staticmethod
        def forward(context: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
            context.group, context.length = group, len(tensor)
            parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
            distributed.all_gather(parts, tensor.contiguous(), group=group)
            return torch.cat(parts)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> Any:
            whole = gradient.contiguous().clone()
            distributed.all_reduce(whole, group=context.group)
            start = distributed.get_rank(context.group) * context.length
            return whole[start : start + context.length], None

    return Gathered


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **options: Any
) -> tuple[Any, None]:
    """As an attention function of transformers': (1, heads, this rank's tokens, width) in."""
    import torch

    bounds, group = _rows
    rank, tokens = torch.distributed.get_rank(group), query.shape[2]
    key, value = (all_gather(part.transpose(0, 2), group).transpose(0, 2) for part in (key, value))
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
    places = torch.arange(key.shape[2])
    row = torch.bucketize(places, bounds.long(), right=True)
    own = slice(rank * tokens, (rank + 1) * tokens)
    allowed = (row[own, None] == row[None]) & (places[own, None] >= places[None])
    made = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scaling)
    return made.transpose(1, 2), None
