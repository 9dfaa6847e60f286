"""The facts of a model that decide whether a run can be followed: read from its `config.json`, in a folder or in the
Hugging Face cache, or told by a published name. Nothing is loaded or downloaded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple


class Model(NamedTuple):
    """The known facts of a model; None: not known.

    images: whether it comes with a processor of images, audio or video. positions: whether it has learned absolute
    positions. router: whether it has a router of experts.
    """

    images: bool | None = None
    positions: bool | None = None
    router: bool | None = None


_UNKNOWN = Model()
_TEXT = Model(images=False, positions=False, router=False)
_NAMES: tuple[tuple[str, Model], ...] = (
    # Published names, without their owner. Source: the models' config.json.
    (r"qwen(1\.5|2|2\.5|3)-((coder|math)-)?\d+(\.\d+)?b\b(?!-a\d)", _TEXT),
    (r"deepseek-r1-distill-(qwen|llama)-\d+(\.\d+)?b\b", _TEXT),
    (r"(meta-)?llama-(2|3|3\.1|3\.3)-\d+b\b", _TEXT),
    (r"(meta-)?llama-3\.2-[13]b\b", _TEXT),
    (r"smollm[23]?-\d+(\.\d+)?[mb]\b", _TEXT),
    (r"mistral-7b\b", _TEXT),
    (r"gemma-(2-)?\d+b\b|gemma-3-(270m|1b)\b", _TEXT),
    (r"(distil)?gpt2(-medium|-large|-xl)?$|opt-\d+(\.\d+)?[mb]$", Model(images=False, positions=True, router=False)),
    (r"qwen(2|2\.5|3)-(vl|omni)-|internvl|llava|idefics|smolvlm|paligemma|aria$", Model(images=True)),
)
_OTHERWISE = re.compile(r"vl|vision|omni|audio|image|video|moe", re.IGNORECASE)
"""Words in a name that is a text model's by `_NAMES` that tell that someone made another thing of it."""
_ABSOLUTE = frozenset({"gpt2", "gpt_neo", "gpt_bigcode", "opt", "openai-gpt", "biogpt", "xglm", "codegen", "ctrl"})
_ROTARY = ("rope_theta", "rope_parameters", "rope_scaling")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_num_experts")
_SENSES = ("vision_config", "audio_config", "image_token_id", "image_token_index", "visual")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


ASSUMED = "a model that reads text only, without learned absolute positions and without a router of experts"
"""The assumption about a model that a configuration does not name."""


def model_of(name: Any) -> Model:
    """The known facts of the model of this name: a folder, or `owner/name` of the hub. None: nobody names it; see
    `ASSUMED`."""
    if name is None:
        return _TEXT
    if not isinstance(name, str) or not name.strip() or "$" in name:
        return _UNKNOWN
    for folder in _folders(name):
        if (config := _config(folder)) is not None:
            return _told(config, folder)
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next((model for text, model in _NAMES if _fits(text, model, last)), _UNKNOWN)


def images_of(name: Any) -> bool | None:
    """Whether a model of this name comes with a processor; None: not known."""
    return model_of(name).images


def text_config(name: Any) -> Mapping[str, Any] | None:
    """The `config.json` of the model of this name, the part of its text model; None where no file is at hand."""
    if not isinstance(name, str) or not name.strip():
        return None
    found = next((config for folder in _folders(name) if (config := _config(folder)) is not None), None)
    return None if found is None else _text_part(found)


def _fits(text: str, model: Model, name: str) -> bool:
    return re.match(text, name) is not None and not (model.images is False and _OTHERWISE.search(name))


def _folders(name: str) -> Iterator[Path]:
    yield Path(name).expanduser()
    home = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    snapshots = Path(home).expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    try:
        yield from sorted(snapshots.iterdir())
    except OSError:
        return


@lru_cache(maxsize=32)
def _config(folder: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config["text_config"] if isinstance(config.get("text_config"), dict) else config


def _told(config: Mapping[str, Any], folder: Path) -> Model:
    text = _text_part(config)
    kind = text.get("model_type")
    rotary = any(text.get(key) is not None for key in _ROTARY)
    return Model(
        images=any(key in config for key in _SENSES) or any((folder / file).is_file() for file in _PROCESSORS),
        positions=True if kind in _ABSOLUTE else False if rotary else None,
        router=any(text.get(key) is not None for key in _EXPERTS),
    )
