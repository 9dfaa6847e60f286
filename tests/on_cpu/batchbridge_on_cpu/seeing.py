"""One tiny policy that reads images, the same beside every release of transformers, and what it is shown: the script's
prompts, each behind an image or two. What frameworks are compared on with images; imported where every prompt has one.

The model is transformers' own, its weights are drawn here: from one seed its releases draw different ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.easyr1 import pictures

FAMILY = "Qwen2.5-VL"
"""With Qwen2-VL verl's V0 trainer ends in its own count of operations (docs/verl.md)."""
OTHERS = 3
"""Prompts from one to the next that shows other pictures of the same sizes."""

pictures.every_prompt_shown()


def seeing_policy(dtype: torch.dtype | None = None, *, family: str = FAMILY) -> Any:
    """Every weight large enough to matter, the vision tower's too."""
    made, drawn = pictures.policy(family), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=drawn)
            scale = parameter.dim() == 1 and name.endswith("weight")  # of a normalisation
            parameter.copy_(float(scale) + 0.1 * noise)
    return made.to(dtype or torch.float32)


def save(folder: Path, *, family: str = FAMILY) -> None:
    """The policy, and its tokenizer."""
    pictures.save(folder, family)
    seeing_policy(family=family).save_pretrained(folder)


def shown_with(prompt: int) -> list[Any]:
    """A prompt's pictures."""
    return [pictures.picture(number) for number in pictures.pictures_of(prompt)]


@functools.cache
def _made(prompt: int, showing: int) -> dict[str, Any]:
    images = shown_with(showing)
    return pictures.Qwen2VLProcessor()(images, [pictures.SHOWN * len(images) + ScriptedRollouts().prompt(prompt)])


def tokenize(text: str) -> list[int]:
    """A scripted prompt's tokens, behind those of its images."""
    prompt = ScriptedRollouts().prompt_index(text)
    ids: list[int] = _made(prompt, prompt)["input_ids"][0].tolist()
    return ids


def inputs(prompt: int, completion: int, *, others: bool = False) -> Mapping[str, torch.Tensor]:
    """What transformers' model is given beside the tokens of a completion of so many: see
    `batchbridge.testing.oracle.Sample`. others: of other pictures of the same sizes."""
    made = _made(prompt, prompt + OTHERS if others else prompt)
    of_images = (made["input_ids"] == pictures.IMAGE).long()
    types = torch.nn.functional.pad(of_images, (0, completion))
    return {name: made[name] for name in ("pixel_values", "image_grid_thw")} | {"mm_token_type_ids": types}
