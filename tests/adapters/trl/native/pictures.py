"""Tiny models that read images, of each layout that TRL splits, and a processor that makes their tensors.

The models are transformers' own, with random weights. The processor is the tests': it makes of a picture, which is a
number in the dataset, pixels of the shapes that the family's own processor makes; those need torchvision, which has no
CPU build beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, ProcessorMixin

from batchbridge.testing.tiny import FIRST_WORD, PAD, WORDS, ScriptedRollouts, tiny_tokenizer

VOCABULARY = FIRST_WORD + WORDS
IMAGE, START, END = VOCABULARY, VOCABULARY + 1, VOCABULARY + 2
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }} {% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image> "
    "{% elif part['type'] == 'text' %}{{ part['text'] }} {% endif %}{% endfor %}{% endif %}{% endfor %}"
)
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY + 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "eos_token_id": 1,
    "bos_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}


def pictures_of(prompt: int) -> list[int]:
    """The pictures of a prompt: none, one or two."""
    return [10 * prompt + each for each in range((1, 0, 2)[prompt % 3])]


def pixels(picture: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(picture))


def _grid(picture: int) -> tuple[int, int, int]:
    return (1, *((2, 4), (4, 4), (2, 2))[picture % 3])


@dataclass(frozen=True)
class Family:
    """A layout. tokens: of a picture. tensors: of the pictures of several rows."""

    name: str
    model: Callable[[], Any]
    tokens: Callable[[int], int]
    tensors: Callable[[list[list[int]]], dict[str, torch.Tensor]]
    types: str | None = None
    """The key that says which tokens are of images."""
    specials: tuple[int, int, int] = (START, IMAGE, END)
    """Tokens before an image, of it, and behind it."""

    def prompt(self, text: str, pictures: list[int]) -> list[int]:
        """Token ids of a prompt."""
        start, image, end = self.specials
        shown = [[start, *[image] * self.tokens(picture), end] for picture in pictures]
        return [token for ids in shown for token in ids] + tiny_tokenizer()(text)["input_ids"]

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a scripted prompt, with its own pictures."""
        return self.prompt(text, pictures_of(ScriptedRollouts().prompt_index(text)))

    def inputs(self, prompt: int, completion: int, pictures: list[int] | None = None) -> Mapping[str, torch.Tensor]:
        """What the model is given beside the tokens of one completion."""
        shown = pictures_of(prompt) if pictures is None else pictures
        found = dict(self.tensors([shown])) if shown else {}
        if self.types is not None:
            ids = torch.tensor([self.prompt(ScriptedRollouts().prompt(prompt), shown) + [PAD] * completion])
            found[self.types] = (ids == self.specials[1]).long()
        return found


def _flat(shape: tuple[int, ...]) -> Callable[[list[list[int]]], dict[str, torch.Tensor]]:
    return lambda rows: {"pixel_values": torch.stack([pixels(one, *shape) for row in rows for one in row])}


def _grids(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    shown = [one for row in rows for one in row]
    patches = [pixels(one, _grid(one)[1] * _grid(one)[2], 96) for one in shown]
    return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor([_grid(one) for one in shown])}


def _by_row(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    most = max(map(len, rows))
    values, mask = torch.zeros(len(rows), most, 3, 8, 8), torch.zeros(len(rows), most, 8, 8, dtype=torch.bool)
    for place, row in enumerate(rows):
        for number, one in enumerate(row):
            values[place, number], mask[place, number] = pixels(one, 3, 8, 8), True
    return {"pixel_values": values, "pixel_attention_mask": mask}


def _seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make().float()


def qwen() -> Any:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = TEXT | {"use_sliding_window": False, "rope_parameters": rope}
    vision = {
        "depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "in_channels": 3,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": 0.2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text, vision_config=vision, vision_start_token_id=START, vision_end_token_id=END,
        image_token_id=IMAGE, video_token_id=END, tie_word_embeddings=False, pad_token_id=PAD, eos_token_id=1,
        attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: Qwen2VLForConditionalGeneration(config))


SMALL_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "initializer_range": 0.2,
}


def llava() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(
        text_config=LlamaConfig(**TEXT), vision_config=CLIPVisionConfig(**SMALL_TOWER, projection_dim=32),
        image_token_index=IMAGE, image_seq_length=4, tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: LlavaForConditionalGeneration(config))


def idefics() -> Any:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    config = Idefics3Config(
        text_config={**TEXT, "model_type": "llama"}, vision_config=SMALL_TOWER, image_token_id=IMAGE, scale_factor=2,
        tie_word_embeddings=False, pad_token_id=PAD, attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: Idefics3ForConditionalGeneration(config))


def gemma() -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    config = Gemma3Config(
        text_config={**TEXT, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64}, mm_tokens_per_image=4,
        vision_config=SMALL_TOWER | {"vision_use_head": False}, image_token_index=IMAGE, boi_token_index=START,
        eoi_token_index=END, tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: Gemma3ForConditionalGeneration(config))


def llava_next() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextConfig, LlavaNextForConditionalGeneration

    config = LlavaNextConfig(
        text_config=LlamaConfig(**TEXT), vision_config=CLIPVisionConfig(**SMALL_TOWER, projection_dim=32),
        image_token_index=IMAGE, image_grid_pinpoints=[[8, 8], [16, 8]], tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: LlavaNextForConditionalGeneration(config))


def _sized(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Padded to the most patches: the whole picture, and one or two parts of it."""
    shown = [one for row in rows for one in row]
    values = torch.zeros(len(shown), max(2 + one % 2 for one in shown), 3, 8, 8)
    for place, one in enumerate(shown):
        values[place, : 2 + one % 2] = pixels(one, 2 + one % 2, 3, 8, 8)
    return {"pixel_values": values, "image_sizes": torch.tensor([[8 + 8 * (one % 2), 8] for one in shown])}


def internvl() -> Any:
    from transformers import InternVLConfig, InternVLForConditionalGeneration, LlamaConfig

    tower = SMALL_TOWER | {"image_size": [8, 8], "patch_size": [4, 4], "num_attention_heads": 4}
    config = InternVLConfig(
        text_config=LlamaConfig(**TEXT), vision_config=tower, image_token_id=IMAGE, image_seq_length=1,
        tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: InternVLForConditionalGeneration(config))


def _tiles(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.cat([pixels(one, 1 + one % 2, 3, 8, 8) for row in rows for one in row])}


class Tiler:
    """What TRL asks an image processor for where tensors are made of tiles: one or two of a picture."""

    use_thumbnail = False

    def __call__(self, images: list[list[int] | None], **options: Any) -> dict[str, torch.Tensor]:
        tiles = torch.tensor([1 + one % 2 for row in images for one in row or []])
        return {"num_patches": tiles, "image_rows": tiles, "image_cols": torch.ones_like(tiles)}


def lfm() -> Any:
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    tower = {name: value for name, value in SMALL_TOWER.items() if name not in ("image_size", "initializer_range")}
    config = Lfm2VlConfig(
        text_config={**TEXT, "model_type": "llama"}, projector_hidden_size=32, image_token_id=IMAGE,
        vision_config={**tower, "model_type": "siglip2_vision_model", "num_patches": 16, "vision_use_head": False},
        tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: Lfm2VlForConditionalGeneration(config))


def _shaped(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Tiles of patches, padded to the most patches."""
    shown = [one for row in rows for one in row for _ in range(1 + one % 2)]
    shapes = torch.tensor([_grid(one)[1:] for one in shown])
    most = int(shapes.prod(1).max())
    values, mask = torch.zeros(len(shown), most, 48), torch.zeros(len(shown), most, dtype=torch.long)
    for place, (one, (height, width)) in enumerate(zip(shown, shapes.tolist(), strict=True)):
        values[place, : height * width], mask[place, : height * width] = pixels(one, height * width, 48), 1
    return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}


def gemma_4() -> Any:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    text = TEXT | {"head_dim": 8, "hidden_size_per_layer_input": 0, "sliding_window": 64}
    tower = {name: value for name, value in SMALL_TOWER.items() if name != "image_size"}
    sizes = {"num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2, "position_embedding_size": 16}
    config = Gemma4Config(
        text_config=text, vision_config=tower | sizes, audio_config=None, image_token_id=IMAGE, boi_token_id=START,
        eoi_token_id=END, video_token_id=END, audio_token_id=END, tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    return _seeded(lambda: Gemma4ForConditionalGeneration(config))


def _placed(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Four by four patches of each image, and where each lies."""
    shown = [one for row in rows for one in row]
    places = torch.tensor([[x, y] for y in range(4) for x in range(4)])
    values = torch.stack([torch.sigmoid(pixels(one, 16, 48)) for one in shown])
    return {"pixel_values": values, "image_position_ids": places.expand(len(shown), -1, -1)}


def _patches(picture: int) -> int:
    return _grid(picture)[1] * _grid(picture)[2] // 4


FAMILIES = {
    family.name: family
    for family in (
        Family("Qwen2-VL: patches of each image, by a grid", qwen, _patches, _grids, "mm_token_type_ids"),
        Family("LLaVA: one row for each image", llava, lambda picture: 4, _flat((3, 8, 8))),
        Family("LLaVA-NeXT: patches and sizes of each image", llava_next, lambda one: 16 if one % 2 else 10, _sized),
        Family("LFM2-VL: tiles and shapes", lfm, lambda picture: _patches(picture) * (1 + picture % 2), _shaped),
        Family("InternVL: tiles of each image", internvl, lambda picture: 1 + picture % 2, _tiles),
        Family("Idefics3: one row for each completion, padded", idefics, lambda picture: 1, _by_row),
        Family("Gemma 4: places of patches", gemma_4, lambda picture: 4, _placed, "mm_token_type_ids"),
        Family(
            "Gemma 3: one row for each image, types of tokens",
            gemma,
            lambda picture: 4,
            _flat((3, 8, 8)),
            "token_type_ids",
        ),
    )
}


def _text(content: Any) -> str:
    """Of a message, which has parts where a rollout has images."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part["type"] == "text")


class Processor(ProcessorMixin):  # type: ignore[misc]  # transformers is untyped here
    """Makes a family's tensors of texts and pictures."""

    attributes = ["tokenizer"]  # noqa: RUF012
    tokenizer_class = "PreTrainedTokenizerFast"

    image_processor = Tiler()

    def __init__(self, tokenizer: PreTrainedTokenizerFast, family: str = "") -> None:
        super().__init__(tokenizer, chat_template=TEMPLATE)
        self.family = family

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        if images is None:
            return self.tokenizer(text, **options)
        family = FAMILIES[self.family]
        shown = [row or [] for row in images]
        words = [each.replace("<image>", " ") for each in text]
        ids = [family.prompt(each, row) for each, row in zip(words, shown, strict=True)]
        batch = dict(self.tokenizer.pad({"input_ids": ids}, padding=True, return_tensors="pt"))
        if family.types is not None:
            batch[family.types] = (batch["input_ids"] == family.specials[1]).long()
        return batch | family.tensors(shown)


def picture_trainer(
    folder: Path,
    family: Family,
    script: ScriptedRollouts | None = None,
    prompts: int = 6,
    pictures: Callable[[int], list[int]] = pictures_of,
    **arguments: Any,
) -> Any:
    """A `GRPOTrainer` of a family's tiny model that plays a script over prompts with and without pictures."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    script = ScriptedRollouts() if script is None else script

    def who(messages: list[list[dict[str, Any]]], trainer: Any) -> list[tuple[int, int]]:
        first = trainer.accelerator.process_index * len(messages)
        texts = [_text(each[0]["content"]) for each in messages]
        return [(script.prompt_index(text), (first + row) % trainer.num_generations) for row, text in enumerate(texts)]

    def play(messages: list[Any], trainer: Any) -> dict[str, Any]:
        rows = who(messages, trainer)
        return {
            "prompt_ids": [family.prompt(script.prompt(prompt), pictures(prompt)) for prompt, _ in rows],
            "completion_ids": [script.completion(*each) for each in rows],
            "logprobs": [[0.0] * len(script.completion(*each)) for each in rows],
            "env_mask": [script.loss_mask(*each) for each in rows],
            "scripted": rows,
        }

    def reward(prompts: Any, completions: Any, scripted: list[tuple[int, int]], **others: Any) -> list[float]:
        return [script.reward(*each) for each in scripted]

    settings: dict[str, Any] = {
        "output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, "num_generations": 4,
        "max_completion_length": script.longest, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0, "optim": "sgd", "beta": 0.0, "gradient_checkpointing": False,
    }  # fmt: skip
    rows = {
        "prompt": [[{"role": "user", "content": script.prompt(index)}] for index in range(prompts)],
        "images": [pictures(index) for index in range(prompts)],
    }
    if not any(rows["images"]):
        del rows["images"]
    model = family.model()
    args = GRPOConfig(**settings | arguments)
    if args.beta:
        with args.distributed_state.main_process_first():
            if args.distributed_state.is_main_process:
                model.save_pretrained(folder / "reference")
        model.config._name_or_path = str(folder / "reference")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<start>", "<end>"]})
    return GRPOTrainer(
        model=model, args=args, train_dataset=Dataset.from_dict(rows),
        processing_class=Processor(tokenizer, family.name), reward_funcs=reward, rollout_func=play,
    )  # fmt: skip
