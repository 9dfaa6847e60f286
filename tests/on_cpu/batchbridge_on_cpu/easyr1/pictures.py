"""Tiny models that read images, of each family that EasyR1 has a forward for, and prompts with no, one or two images.

The models and the image processor are transformers' own; the processor that puts them beside the tokenizer is ours,
because theirs needs torchvision, which has no CPU build beside our torch. Nothing is downloaded.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.tiny import EOS, FIRST_WORD, PAD, WORDS, ScriptedRollouts

VOCABULARY = FIRST_WORD + WORDS + 4
START, END, IMAGE, VIDEO = range(FIRST_WORD + WORDS, VOCABULARY)
SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SHOWN = f"{SPECIALS[0]} {SPECIALS[2]} {SPECIALS[1]} "
PATCH, MERGE = 4, 2
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }} {% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}" + SHOWN + "{% elif part['type'] == 'text' %}"
    "{{ part['text'] }} {% endif %}{% endfor %}{% endif %}{% endfor %}"
)
SETTINGS: Mapping[str, Any] = {
    "data.min_pixels": 16,
    "data.max_pixels": 4096,
    "data.max_prompt_length": 24,
    "worker.actor.padding_free": True,
    "worker.actor.model.freeze_vision_tower": False,
}
"""Of a run whose prompts are those of `prepare`."""
FAMILY = "family.json"
"""The file of a model's folder that names its family."""


COUNTS = [1, 0, 2]
"""How many pictures a prompt has, by the rest of its number; see `every_prompt_shown`."""


def every_prompt_shown() -> None:
    """From now on no prompt is without a picture, in this process."""
    COUNTS[:] = [1, 2, 2]


def pictures_of(prompt: int) -> list[int]:
    """The numbers of a prompt's pictures: one, none or two."""
    return [10 * prompt + each for each in range(COUNTS[prompt % 3])]


def picture(number: int) -> Any:
    """An image of random pixels, of one, two or three tokens."""
    import numpy as np
    from PIL import Image  # type: ignore[import-not-found,unused-ignore]

    size = ((8, 8), (16, 8), (8, 24))[number % 3]
    return Image.fromarray(np.random.default_rng(number).integers(0, 255, (*size, 3), dtype="uint8"))


def text_of(prompt: int) -> str:
    """Of the data set: EasyR1 puts an image in place of each `<image>`."""
    return "<image>" * len(pictures_of(prompt)) + ScriptedRollouts().prompt(prompt)


def image_processor() -> Any:
    """transformers' own without torchvision: from 5 on that is another class, which makes the same of a picture."""
    from transformers.models import qwen2_vl

    kind = getattr(qwen2_vl, "Qwen2VLImageProcessorPil", None) or qwen2_vl.Qwen2VLImageProcessor
    return kind(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, min_pixels=64, max_pixels=4096)


def tokenizer() -> Any:
    """The tiny policy's, with the tokens that stand for images."""
    from batchbridge.testing.tiny import tiny_tokenizer

    made = tiny_tokenizer()
    made.add_special_tokens({"additional_special_tokens": list(SPECIALS)})
    made.chat_template = TEMPLATE
    assert made.convert_tokens_to_ids(list(SPECIALS)) == [START, END, IMAGE, VIDEO]
    return made


class Qwen2VLProcessor:
    """Makes a prompt's tokens and the tensors of its images; named as transformers' is, which EasyR1 asks for."""

    image_token_id, video_token_id, vision_start_token_id = IMAGE, VIDEO, START
    model_input_names: tuple[str, ...] = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")

    def __init__(self, own: Any = None) -> None:
        self.tokenizer = tokenizer() if own is None else own
        self.image_processor = image_processor()

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        """As the tokenizer does it."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> dict[str, Any]:
        """Of one prompt."""
        found = dict(self.image_processor(images=images, return_tensors="pt")) if images else {}
        ids, counts = [], iter([] if not found else (found["image_grid_thw"].prod(1) // MERGE**2).tolist())
        for token in self.tokenizer(text[0], add_special_tokens=False)["input_ids"]:
            ids += [IMAGE] * next(counts) if token == IMAGE else [token]
        assert next(counts, None) is None, "an image that the text does not show"
        return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)} | found

    def save_pretrained(self, folder: Any) -> None:
        """Into a checkpoint."""
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)


class Qwen3VLProcessor(Qwen2VLProcessor):
    """The same; EasyR1 counts positions by the name."""


_TEXT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "use_sliding_window": False,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]},
}
_TOWER: Mapping[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "initializer_range": 0.2,
}
_TOKENS: Mapping[str, Any] = {
    "vision_start_token_id": START,
    "vision_end_token_id": END,
    "vision_token_id": IMAGE,
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
}


def _qwen2() -> Any:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    tower = {**_TOWER, "embed_dim": 32, "mlp_ratio": 2}
    return Qwen2VLForConditionalGeneration, Qwen2VLConfig(text_config=dict(_TEXT), vision_config=tower, **_TOKENS)


def _qwen2_5() -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    more = {"intermediate_size": 64, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}
    tower = {**_TOWER, **more, "tokens_per_second": 2}
    kind = Qwen2_5_VLForConditionalGeneration
    return kind, Qwen2_5_VLConfig(text_config=dict(_TEXT), vision_config=tower, **_TOKENS)


def _qwen3_parts() -> tuple[dict[str, Any], dict[str, Any]]:
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    text = {**_TEXT, "head_dim": 8, "rope_scaling": rope}
    more = {"intermediate_size": 64, "out_hidden_size": 32, "num_position_embeddings": 16}
    return text, {**_TOWER, **more, "deepstack_visual_indexes": [0]}


def _qwen3() -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text, tower = _qwen3_parts()
    return Qwen3VLForConditionalGeneration, Qwen3VLConfig(text_config=text, vision_config=tower, **_TOKENS)


def _qwen3_moe() -> Any:
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

    text, tower = _qwen3_parts()
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeConfig(text_config=text, vision_config=tower, **_TOKENS)


FAMILIES: Mapping[str, Callable[[], Any]] = {
    "Qwen2-VL": _qwen2,
    "Qwen2.5-VL": _qwen2_5,
    "Qwen3-VL": _qwen3,
    "Qwen3-VL-MoE": _qwen3_moe,
}


def policy(family: str, seed: int = 0) -> Any:
    """A family's tiny model, eager, float32."""
    kind, config = FAMILIES[family]()
    config._attn_implementation = "eager"
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    made = kind(config).float()
    torch.random.set_rng_state(state)
    return made


def save(folder: Path, family: str) -> None:
    """A family's model and tokenizer."""
    policy(family).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / FAMILY).write_text(json.dumps(family), encoding="utf-8")


def prepare(folder: Path, family: str, *, prompts: int = 12) -> None:
    """A model, and `prompts` prompts of the script with their images; a prompt's answer is its index."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    save(folder / "policy", family)
    rows = [
        {"prompt": text_of(index), "answer": str(index), "images": [{"bytes": _png(one)} for one in pictures_of(index)]}
        for index in range(prompts)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "prompts.parquet")


def arguments(folder: Path) -> list[str]:
    """What a scripted run says beside its own words, where its prompts are those of `prepare`."""
    files = dict.fromkeys(("data.train_files", "data.val_files"), folder / "prompts.parquet")
    words = {**SETTINGS, **files, "worker.actor.model.model_path": folder / "policy"}
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in words.items()]


def _png(number: int) -> bytes:
    held = io.BytesIO()
    picture(number).save(held, "PNG")
    return held.getvalue()


def after_tokenizer(module: Any) -> None:
    """EasyR1 finds our processor in the folder of a model of these; in any other one it finds none."""

    def get_processor(model_path: str, override_chat_template: Any = None, **options: Any) -> Any:
        file = Path(model_path) / FAMILY
        if not file.exists():
            return None
        newer = "Qwen3" in json.loads(file.read_text(encoding="utf-8"))
        return (Qwen3VLProcessor if newer else Qwen2VLProcessor)()

    module.get_processor = get_processor
