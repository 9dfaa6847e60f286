"""TRL settings as text: a YAML recipe, and a Python call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def yaml_text(values: Mapping[str, Any], version: str, world: int) -> str:
    """A recipe for `trl grpo --config`, read alike by PyYAML and by TRL's parser."""
    lines = [f"# GRPO settings for trl {version}, {world} process{'es' if world > 1 else ''}."]
    lines += [f"# accelerate launch --num_processes {world} ..."]
    return "\n".join([*lines, *(f"{key}: {_yaml(value)}" for key, value in values.items())]) + "\n"


def python_text(values: Mapping[str, Any], version: str, world: int) -> str:
    """A call that constructs; run it in the processes that train, since GRPOConfig reads the world size there."""
    lines = [
        f"# for trl {version}, {world} process{'es' if world > 1 else ''}",
        "from trl import GRPOConfig",
        "",
        "args = GRPOConfig(",
    ]
    return "\n".join([*lines, *(f"    {key}={value!r}," for key, value in values.items()), ")"]) + "\n"


def _yaml(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)
        # PyYAML takes 1e-06 for a string; 1.0e-06 is a number to everybody.
        mantissa, exponent, power = text.partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{_signed(power)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
    # JSON is YAML; a text like "no" or "1" must keep its quotes, and so all texts have them.
    return json.dumps(value)


def _signed(power: str) -> str:
    return power if not power or power[0] in "+-" else f"+{power}"
