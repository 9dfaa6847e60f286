"""Tiny policies whose completions can lie end to end: one of each family that is proven, under sdpa."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from batchbridge.testing.tiny import TINY, tiny_policy

SIZES: dict[str, Any] = {**TINY, "head_dim": 8, "attn_implementation": "sdpa"}
FAMILIES = ("Qwen2", "Qwen3", "Llama", "Gemma", "Mistral")


def packable(seed: int = 0) -> Any:
    """`tiny_policy` under sdpa."""
    policy = tiny_policy(seed=seed)
    policy.config._attn_implementation = "sdpa"
    return policy


def of_family(family: str, **settings: Any) -> Callable[[], Any]:
    """Builds the same random policy of a family at every call, in float32."""

    def build() -> Any:
        config = getattr(transformers, f"{family}Config")(**{"sliding_window": None, **SIZES, **settings})
        state = torch.random.get_rng_state()
        torch.manual_seed(3)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        torch.random.set_rng_state(state)
        return model.float()

    return build
