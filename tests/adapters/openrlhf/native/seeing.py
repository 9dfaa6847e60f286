"""A tiny Qwen2-VL, and what OpenRLHF hands its policy beside tokens: the pixels of each prompt's image, of several
sizes. The model is transformers' own, with random weights; pixels come from a random state of the prompt, in the shapes
of the family's own processor, which needs torchvision. Nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.tiny import EOS, FIRST_WORD, PAD, TINY, WORDS, tiny_tokenizer

START = FIRST_WORD + WORDS
END, IMAGE, VIDEO = START + 1, START + 2, START + 3
PATCH, MERGE, TEMPORAL = 4, 2, 2
GRIDS = ((4, 2), (6, 4), (2, 2), (4, 6))
"""Patches of an image, high and wide; MERGE x MERGE of them are a token."""


def image_of(prompt: int) -> dict[str, torch.Tensor]:
    """As OpenRLHF's `mm_train_inputs` has it of one completion."""
    high, wide = GRIDS[prompt % len(GRIDS)]
    generator = torch.Generator().manual_seed(prompt)
    pixels = torch.randn(high * wide, 3 * TEMPORAL * PATCH**2, generator=generator)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, high, wide]])}


def with_image(prompt: int, tokens: list[int]) -> list[int]:
    """A prompt's tokens behind those of its image."""
    high, wide = GRIDS[prompt % len(GRIDS)]
    return [START, *[IMAGE] * (high * wide // MERGE**2), END, *tokens]


def positions(prompt: int, length: int) -> torch.Tensor:
    """Qwen2-VL's three position numbers (time, height, width) of each token, shape (3, 1, tokens), of a row that begins
    with the prompt's image. Source: the paper's M-RoPE (Qwen2-VL, section 2.1), not transformers' code."""
    high, wide = (size // MERGE for size in GRIDS[prompt % len(GRIDS)])
    image = [[1, 1 + row, 1 + column] for row in range(high) for column in range(wide)]
    after = 1 + max(high, wide)
    rest = [[after + place] * 3 for place in range(length - 1 - len(image))]
    return torch.tensor([[0, 0, 0], *image, *rest]).T[:, None]


def seeing_policy(seed: int = 0) -> Any:
    """Randomly initialised, every layer with weights large enough to matter."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = {
        **TINY,
        "vocab_size": VIDEO + 1,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "rope_parameters": rope,
        "rope_scaling": rope,
    }
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 4,
        "mlp_ratio": 2,
        "in_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TEMPORAL,
        "initializer_range": 0.2,
    }
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=START,
        vision_end_token_id=END,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2VLForConditionalGeneration(config).float()


def save(folder: Path) -> None:
    seeing_policy().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def freeze(model: Any) -> None:
    """As `actor.freeze_visual_encoder`. Source: openrlhf 0.11.2 Actor.__init__."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("language_model" in name or "lm_head" in name)
