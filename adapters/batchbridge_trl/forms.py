"""TRL settings as text: a YAML recipe, and a Python call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.config_texts import yaml_value


def yaml_text(values: Mapping[str, Any], version: str | None, world: int) -> str:
    """A recipe for `trl grpo --config`, read alike by PyYAML and by TRL's parser."""
    lines = [f"# GRPO settings for trl {version}, {world} process{'es' if world > 1 else ''}."]
    lines += [f"# accelerate launch --num_processes {world} ..."]
    return "\n".join([*lines, *(f"{key}: {yaml_value(value)}" for key, value in values.items())]) + "\n"


def python_text(values: Mapping[str, Any], version: str | None, world: int) -> str:
    """A call that constructs; run it in the processes that train, since GRPOConfig reads the world size there."""
    lines = [
        f"# for trl {version}, {world} process{'es' if world > 1 else ''}",
        "from trl import GRPOConfig",
        "",
        "args = GRPOConfig(",
    ]
    return "\n".join([*lines, *(f"    {key}={value!r}," for key, value in values.items()), ")"]) + "\n"
