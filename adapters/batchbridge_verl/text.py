"""verl settings as text: a launch command with hydra overrides, and a YAML file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from batchbridge_verl.overrides import NotRead, parse_value
from batchbridge_verl.settings import ENGINE, defaults_of, holds

_PLAIN_WORD = re.compile(r"[\w./:@%+\-]+")


def hydra_text(values: Mapping[str, Any], version: str) -> str:
    """`python3 -m verl.trainer.main_ppo` with one override per line, quoted for a POSIX shell."""
    engine = str(values.get(ENGINE, "fsdp"))
    known = defaults_of(version, engine)
    words = ["python3 -m verl.trainer.main_ppo"]
    by_name = engine == "megatron" and not holds(">=0.8.0", version)  # model_engine has no megatron before
    if by_name:
        words.append("--config-name=ppo_megatron_trainer.yaml")
    for key, value in values.items():
        if key == ENGINE and by_name:
            continue
        plus = "" if key in known or key == ENGINE else "+"
        words.append(shell_word(f"{plus}{key}={hydra_value(value)}"))
    return f"# verl {version}\n" + " \\\n    ".join(words) + "\n"


def yaml_text(values: Mapping[str, Any], version: str) -> str:
    """A primary configuration for `--config-path FOLDER --config-name NAME`, over verl's own defaults."""
    engine = values.get(ENGINE)
    by_key = f"  - override model_engine: {engine}" if engine not in (None, "megatron") else None
    lines = [
        f"# verl {version}; verl's own configuration folder must be on the search path:",
        "hydra:",
        "  searchpath:",
        "    - pkg://verl.trainer.config",
        "defaults:",
        "  - ppo_megatron_trainer" if engine == "megatron" else "  - ppo_trainer",
        *([] if by_key is None else [by_key]),
        "  - _self_",
    ]
    return "\n".join(lines) + "\n" + nested_yaml({key: value for key, value in values.items() if key != ENGINE})


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


def hydra_value(value: Any) -> str:
    """A value in hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    if isinstance(value, str):
        try:
            if value and parse_value(value) == value:
                return value
        except NotRead:
            pass
        # Backslashes count by pairs before a quote, and as they stand elsewhere.
        return "'" + re.sub(r"(\\*)('|\Z)", lambda run: run[1] * 2 + ("\\'" if run[2] else ""), value) + "'"
    return repr(value)


def shell_word(word: str) -> str:
    """`word`, quoted for a POSIX shell where it must be."""
    return word if _PLAIN_WORD.fullmatch(word.replace("=", "")) else "'" + word.replace("'", "'\\''") + "'"


def _yaml(tree: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"{'  ' * depth}{key}:", *_yaml(value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {_yaml_value(value)}")
    return lines


def _yaml_value(value: Any) -> str:
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    return json.dumps(value)
