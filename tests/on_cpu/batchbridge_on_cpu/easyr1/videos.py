"""Videos for the tiny models of `pictures`: made-up frames, a processor that counts their tokens, and EasyR1's own data
set on prompts with videos.

Frames take the place of what EasyR1's `process_video` returns, and of it alone: it decodes a file and needs
torchvision. A video is a number here, and its frames are a float tensor of whole values, as decoded ones are. The
model's tensors are made of them by transformers' own image processor, which EasyR1's workers ask for videos, too.
Nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.easyr1 import pictures

SIZES = ((4, 8, 8), (2, 16, 8), (6, 8, 8))
"""Frames, height and width of a video, by the rest of its number: tokens at two, one or three times, two or three in
all."""
RATES = (1.0, 2.0, 1.0)
"""Frames per second that a video was sampled with, by the rest of its number: its tokens are two seconds apart, or
one."""
VIDEOS: Mapping[int, Sequence[int]] = {0: (12, 4), 1: (), 3: (3,), 4: (5,), 5: (0, 8)}
"""The videos of each prompt that has no image."""
IMAGES: Mapping[int, Sequence[int]] = {2: (21,)}
"""The images of a prompt that EasyR1's own data set has in a file of its own: one file's rows have images or videos."""
SHOWN = f"{pictures.SPECIALS[0]} {pictures.SPECIALS[3]} {pictures.SPECIALS[1]} "
TEMPLATE = pictures.TEMPLATE.replace(
    "{% elif part['type'] == 'text' %}",
    "{% elif part['type'] == 'video' %}" + SHOWN + "{% elif part['type'] == 'text' %}",
)


def frames(number: int) -> torch.Tensor:
    """A video of random pixels, shape (frames, colours, height, width)."""
    count, height, width = SIZES[number % 3]
    generator = torch.Generator().manual_seed(1000 + number)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator).float()


def rate(number: int) -> float:
    """Of its frames, per second."""
    return RATES[number % 3]


def process_video(
    video: int, min_pixels: Any, max_pixels: Any, video_fps: float, return_fps: bool = False, **options: Any
) -> Any:
    """In the place of EasyR1's: what it would return of a decoded file."""
    return (frames(video), rate(video)) if return_fps else frames(video)


def stand_in() -> None:
    """Puts `process_video` where EasyR1 calls its own."""
    from verl.utils import dataset
    from verl.workers import fsdp_workers

    dataset.process_video = fsdp_workers.process_video = process_video


class Qwen2VLProcessor(pictures.Qwen2VLProcessor):
    """Makes a prompt's tokens and the tensors of its videos, too."""

    model_input_names = (*pictures.Qwen2VLProcessor.model_input_names, "pixel_values_videos", "video_grid_thw")

    def __init__(self, own: Any = None) -> None:
        super().__init__(own)
        self.tokenizer.chat_template = TEMPLATE

    def __call__(self, images: Any = None, text: Any = None, videos: Any = None, **options: Any) -> dict[str, Any]:
        """Of one prompt."""
        found = super().__call__(images, text, **options)
        if not videos:
            return found
        made = dict(self.image_processor(images=None, videos=videos, return_tensors="pt"))
        counts = iter((made["video_grid_thw"].prod(1) // pictures.MERGE**2).tolist())
        ids: list[int] = []
        for token in found["input_ids"][0].tolist():
            ids += [token] * (next(counts) if token == pictures.VIDEO else 1)
        assert next(counts, None) is None, "a video that the text does not show"
        whole = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        return {**found, **whole, **made}


class Qwen2_5_VLProcessor(Qwen2VLProcessor):
    """The same, which says that its model counts seconds."""

    model_input_names = (*Qwen2VLProcessor.model_input_names, "second_per_grid_ts")


PROCESSORS = {"Qwen2-VL": Qwen2VLProcessor, "Qwen2.5-VL": Qwen2_5_VLProcessor}


def prompts(folder: Path, processor: Any) -> dict[int, dict[str, Any]]:
    """What EasyR1's own data set makes of each prompt."""
    from verl.utils.dataset import RLHFDataset

    found: dict[int, dict[str, Any]] = {}
    for kind, mark, shown in (("videos", "<video>", VIDEOS), ("images", "<image>", IMAGES)):
        rows = []
        for prompt, numbers in shown.items():
            held: list[Any] = list(numbers)
            if kind == "images":
                held = [str(folder / f"{number}.png") for number in numbers]
                for number, file in zip(numbers, held, strict=True):
                    pictures.picture(number).save(file, "PNG")
            text = mark * len(numbers) + ScriptedRollouts().prompt(prompt)
            rows.append({"prompt": text, "answer": str(prompt), kind: held})
        file = folder / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        data = RLHFDataset(
            str(file),
            processor.tokenizer,
            processor,
            max_prompt_length=pictures.SETTINGS["data.max_prompt_length"],
            min_pixels=pictures.SETTINGS["data.min_pixels"],
            max_pixels=pictures.SETTINGS["data.max_pixels"],
            filter_overlong_prompts=False,
        )
        found |= {int(row["ground_truth"]): row for row in (data[index] for index in range(len(data)))}
    return found
