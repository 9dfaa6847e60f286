"""TRL settings as text: a YAML recipe, and a Python call.

Its own file: only commands that write a configuration import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.config_texts import yaml_value
from batchbridge_trl.settings import TRAINER_GROUPS
from batchbridge_trl.tables import settings_of


def yaml_text(values: Mapping[str, Any], version: str | None, world: int) -> str:
    """A recipe for `trl grpo --config`, read alike by PyYAML and by TRL's parser."""
    lines = [f"# GRPO settings for trl {version}, {world} process{'es' if world > 1 else ''}."]
    lines += [f"# accelerate launch --num_processes {world} ..."]
    return "\n".join([*lines, *(f"{key}: {yaml_value(value)}" for key, value in values.items())]) + "\n"


def python_text(values: Mapping[str, Any], version: str | None, world: int) -> str:
    """A call that constructs; run it in the processes that train, since GRPOConfig reads the world size there. What
    is not an argument of GRPOConfig stands in comments above it."""
    own = settings_of(TRAINER_GROUPS, version or "")
    beside = {key: value for key, value in values.items() if key not in own}
    lines = [
        f"# for trl {version}, {world} process{'es' if world > 1 else ''}",
        *(f"# for the trainer or the script: {key} = {value!r}" for key, value in beside.items()),
        "from trl import GRPOConfig",
        "",
        "args = GRPOConfig(",
    ]
    said = (f"    {key}={value!r}," for key, value in values.items() if key not in beside)
    return "\n".join([*lines, *said, ")"]) + "\n"
