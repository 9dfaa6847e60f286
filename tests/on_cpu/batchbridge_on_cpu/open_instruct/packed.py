"""Flash attention's place on a CPU: torch's own operations over packed rows, whose documents begin where position
numbers begin anew, as flash attention's do. What stands around the kernel (DeepSpeed's Ulysses) runs as it is.

Source: transformers 5.15 modeling_flash_attention_utils.prepare_fa_kwargs_from_position_ids.
"""

from __future__ import annotations

from typing import Any

NAME = "flash_attention_2"


def after_models(module: Any) -> None:
    """The kernel by its name, which DeepSpeed looks up and wraps."""
    module.ALL_ATTENTION_FUNCTIONS[NAME] = attention


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: None, *, position_ids: Any, **options: Any
) -> tuple[Any, None]:
    """Causal within each document; (rows, heads, tokens, width) in, (rows, tokens, heads, width) out."""
    import torch

    assert attention_mask is None, "flash attention is told by position numbers"
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    document = (position_ids == 0).cumsum(1)
    seen = (document[:, :, None] == document[:, None, :]).tril()
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(~seen[:, None], -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2), None
