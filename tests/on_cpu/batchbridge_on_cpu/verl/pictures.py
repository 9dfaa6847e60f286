"""A processor for `batchbridge_on_cpu.seeing`'s policy: import this module in every process beside `cpu`.

transformers' own needs torchvision, which has no CPU build beside our torch. verl asks `AutoProcessor` for it, and puts
the model's `get_rope_index` on ours as on any other of its name. Source: verl 0.9.1 utils/tokenizer/tokenizer.py,
hf_processor; experimental/agent_loop/agent_loop.py, _compute_multi_modal_inputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from batchbridge_on_cpu.easyr1 import pictures


class Qwen2VLProcessor(pictures.Qwen2VLProcessor):
    """verl asks it for the tensors of a row's images, with a text from which the tokens of images are gone, and counts
    the types of tokens itself."""

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        types = ids["input_ids"] == pictures.IMAGE
        made = self.image_processor(images=images, return_tensors="pt") if images else {}
        return transformers.BatchFeature({**ids, **made, "mm_token_type_ids": types.long()})


class Qwen2_5_VLProcessor(Qwen2VLProcessor):
    """The same."""


OF_FAMILY = {"Qwen2-VL": Qwen2VLProcessor, "Qwen2.5-VL": Qwen2_5_VLProcessor}


def _from_pretrained(path: Any, **options: Any) -> Any:
    file = Path(path) / pictures.FAMILY
    if not file.exists():
        return _native(path, **options)
    return OF_FAMILY[json.loads(file.read_text(encoding="utf-8"))]()


_native = transformers.AutoProcessor.from_pretrained
transformers.AutoProcessor.from_pretrained = _from_pretrained
