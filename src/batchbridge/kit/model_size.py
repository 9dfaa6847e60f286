"""The number of parameters of a model, from the numbers of its config.json; nothing is downloaded or imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BIASED = frozenset({"qwen2"})
"""Types whose query, key and value projections have biases. Source: transformers 4.57.6 modeling_qwen2."""
NORMED = frozenset({"qwen3"})
"""Types whose queries and keys have norms of their own. Source: transformers 4.57.6 modeling_qwen3."""
TYPES = frozenset({"llama", "mistral"}) | BIASED | NORMED
"""Types that are counted: one decoder, without experts."""
_LARGEST = 10**7


def vocabulary(config: Mapping[str, Any]) -> int:
    """Words of the vocabulary. Raises `ValueError`."""
    return _size(config, "vocab_size")


def parameters(config: Mapping[str, Any]) -> int:
    """Parameters of a model of `TYPES`, its embeddings counted once where input and output share them. Raises
    `ValueError`, which names what is missing or not counted."""
    kind = config.get("model_type")
    if kind not in TYPES:
        known = ", ".join(sorted(TYPES))
        raise ValueError(f"model_type = {kind!r:.60}: parameters are counted of {known}; name them with --parameters")
    hidden, layers, heads = (_size(config, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    inner, words = _size(config, "intermediate_size"), vocabulary(config)
    pairs = _size(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    head = _size(config, "head_dim") if config.get("head_dim") is not None else hidden // heads
    attention = 2 * hidden * heads * head + 2 * hidden * pairs * head
    biased = kind in BIASED or bool(config.get("attention_bias"))
    if biased:
        attention += (heads + 2 * pairs) * head
    if biased and kind not in BIASED:
        attention += hidden  # of the output projection, too
    feed_forward = 3 * hidden * inner + ((2 * inner + hidden) if config.get("mlp_bias") else 0)
    norms = 2 * hidden + (2 * head if kind in NORMED else 0)
    ends = words * hidden * (1 if config.get("tie_word_embeddings") else 2) + hidden
    return layers * (attention + feed_forward + norms) + ends


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise ValueError(f"{key} = {value!r:.60}: expected a whole number from 1 to {_LARGEST:,}")
    return value
