"""Unpadding of rows without flash-attn: verl before 0.9.1 has no functions of its own, and the CPU no flash-attn.
transformers has the same ones. Source: verl 0.8.0 and 0.9.0 utils/attention_utils.py.

Its own file: only releases before 0.9.1 need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl.utils import attention_utils


def functions() -> tuple[Callable[..., Any], ...]:
    """index_first_axis, pad_input, rearrange (which dense rows do not need), unpad_input."""
    from transformers.modeling_flash_attention_utils import _pad_input, _unpad_input

    return index_first_axis, _pad_input, rearrange, _unpad_input


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """These rows of a tensor; transformers' own flattens two axes first."""
    return tensor[indices]


def rearrange(*arguments: Any, **options: Any) -> Any:
    """Not offered: packed sequences (`use_remove_padding`) need flash-attn anyway."""
    raise NotImplementedError("rearrange needs flash-attn; set actor_rollout_ref.model.use_remove_padding=False")


if not hasattr(attention_utils, "_fallback_unpad_input"):
    attention_utils._get_attention_functions = functions
