"""Packed rows (`use_remove_padding`) on the CPU: an attention implementation `packed_cpu` in flash-attn's place.

Everything of verl's runs as it is (unpadding, position numbers, Ulysses' all_to_all and gathering); only the kernel is
ours: plain attention with a mask by row. What this does not show is flash-attn itself. Imported by `cpu`. Qwen2-VL's
layers, for which verl has an attention of its own, take ours whatever the implementation is called.
Source: verl 0.8.0 to 0.9.1 models/transformers/monkey_patch.py, qwen2_vl.py; transformers 5.x
integrations/flash_attention.py.
"""

from __future__ import annotations

from typing import Any

import torch

from batchbridge.running.launch import call_after_import

NAME = "packed_cpu"


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    query_length: int,
    *arguments: Any,
    position_ids: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """As transformers' `_flash_attention_forward`: (batch, tokens, heads, width) in and out, causal within each row;
    a row begins where the position numbers begin again."""
    tokens, heads = query.shape[1:3]
    q, k, v = (values.transpose(1, 2) for values in (query, key, value))
    k, v = (values.repeat_interleave(heads // values.shape[1], 1) for values in (k, v))
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None]
    if position_ids is not None:
        row = (position_ids.reshape(-1, tokens)[:1] == 0).cumsum(-1)
        allowed = allowed & (row[:, :, None] == row[:, None, :])
    if attention_mask is not None:
        allowed = allowed & attention_mask.bool()[:, None, :]
    scores = (q @ k.transpose(2, 3) * (softmax_scale or query.shape[-1] ** -0.5)).masked_fill(
        ~allowed[:, None], -torch.inf
    )
    return (scores.softmax(-1) @ v).transpose(1, 2)


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers', (batch, heads, tokens, width) in; through the name that verl patches."""
    from transformers.integrations import flash_attention

    q, k, v = (values.transpose(1, 2) for values in (query, key, value))
    attended = flash_attention._flash_attention_forward(
        q,
        k,
        v,
        mask,
        query_length=q.shape[1],
        is_causal=True,
        softmax_scale=options.get("scaling"),
        position_ids=options.get("position_ids"),
    )
    return attended, None


def register(module: Any) -> None:
    """After verl's monkey_patch, before it patches a model."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])
    module._flash_attention_forward = kernel


def varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: Any, **options: Any) -> torch.Tensor:
    """As flash-attn's `flash_attn_varlen_func`: (tokens of all rows, heads, width) in and out."""
    places = torch.cat([torch.arange(int(length)) for length in cu_seqlens_q.diff()])[None]
    return kernel(q[None], k[None], v[None], None, len(q), position_ids=places)[0]


def register_beside_images(module: Any) -> None:
    """What the module has where flash-attn is installed."""
    module._flash_supports_window_size = module._flash_supports_deterministic = module._flash_use_top_left_mask = False
    module.flash_attn_varlen_func = varlen
    module.fa_peft_integration_check = lambda *states, target_dtype: states  # flash-attn has no float32
    # One row, without padding: another implementation's mask says nothing more.
    module._flash_attention_forward = lambda q, k, v, mask, length, **options: kernel(q, k, v, None, length)


call_after_import(
    {
        "verl.models.transformers.monkey_patch": f"{__name__}:register",
        "verl.models.transformers.qwen2_vl": f"{__name__}:register_beside_images",
    }
)
