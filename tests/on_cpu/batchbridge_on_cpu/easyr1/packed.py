"""What `padding_free` asks of flash-attn, on a CPU: rows without padding, and attention over rows that lie in a line.

EasyR1's own unpadding of position numbers, its patched forward and its cut by position numbers run as they are; only
flash-attn's functions and kernel are ours. Vision towers attend eagerly, image by image, as transformers does it.
Source: flash-attn 2.8 bert_padding, flash_attn_varlen_func; EasyR1 0.3.2 to 0.3.3.dev0
models/transformers/flash_attention_utils.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

NAME = "flash_attention_2"


def unpad_input(hidden: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The attended tokens of all rows in a line, and where they stood."""
    places = torch.nonzero(mask.flatten()).flatten()
    return hidden.flatten(0, 1)[places], places


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The reverse; zeros where nothing was attended."""
    whole = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return whole.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def index_first_axis(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """These entries of the first axis."""
    return values[places]


def flash_attn_varlen_func(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    softmax_scale: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """Causal attention within each of several rows that lie in a line; all of shape (tokens, heads, width)."""
    ends = cu_seqlens_q.tolist()
    rows = [slice(*pair) for pair in itertools.pairwise(ends)]
    return torch.cat([_attention(query[row], key[row], value[row], softmax_scale) for row in rows])


def flash_attention_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, *arguments: Any, **options: Any
) -> torch.Tensor:
    """In place of transformers' `_flash_attention_forward`, for one row alone; (1, tokens, heads, width)."""
    assert attention_mask is None, "without padding there is no mask"
    return _attention(query[0], key[0], value[0], options.get("softmax_scale"))[None]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    repeats = q.shape[1] // k.shape[1]
    heads = [one.transpose(0, 1) for one in (q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1))]
    scores = heads[0] @ heads[1].transpose(1, 2) * (q.shape[2] ** -0.5 if scale is None else scale)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ heads[2]).transpose(0, 1)


def after_actor(module: Any) -> None:
    """What EasyR1's actor would import from flash-attn."""
    module.unpad_input, module.pad_input, module.index_first_axis = unpad_input, pad_input, index_first_axis


def after_attention(module: Any) -> None:
    """What EasyR1's attention would; and the kernel's wish for bf16, which is left unmet."""
    module.fa_peft_integration_check = lambda query, key, value, **options: (query, key, value)
    module._flash_supports_window_size = module._flash_supports_deterministic = False
    module._flash_use_top_left_mask = False
    module.flash_attn_varlen_func, module._flash_attention_forward = flash_attn_varlen_func, flash_attention_forward


_asked: list[str] = []
"""Kinds of models whose rows should have no padding, in this process."""


def apply_ulysses_patch(model_type: str) -> None:
    """In place of EasyR1's, which it calls before it loads such a model."""
    from verl.models import monkey_patch

    _asked.append(model_type)
    monkey_patch.apply_ulysses_patch(model_type)


def without_padding(model: Any) -> Any:
    """A model that was loaded with eager attention; where `padding_free` was asked for, its text attends so."""
    if model.config.model_type in _asked:
        model.config.get_text_config()._attn_implementation = NAME
    return model
