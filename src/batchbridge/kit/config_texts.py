"""Settings as text: nested YAML, and words of a POSIX shell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN_WORD = re.compile(r"[\w./:@%+\-]+")


def nested_yaml(values: Mapping[str, Any]) -> str:
    """Dotted keys as nested YAML."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[leaf] = value
    return "\n".join(_yaml(tree, 0)) + "\n"


def shell_word(word: str) -> str:
    """`word`, quoted for a POSIX shell where it must be."""
    return word if _PLAIN_WORD.fullmatch(word.replace("=", "")) else "'" + word.replace("'", "'\\''") + "'"


def _yaml(tree: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{'  ' * depth}{key}:", *_yaml(value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {yaml_value(value)}")
    return lines


def yaml_value(value: Any) -> str:
    """A value as YAML on one line, which PyYAML and everybody else read alike; texts have quotes, whatever they say."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {yaml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    return json.dumps(value)
