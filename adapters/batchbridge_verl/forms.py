"""verl settings as text: a launch command with hydra overrides, and a YAML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batchbridge.kit.config_texts import nested_yaml, shell_word
from batchbridge.kit.hydra_overrides import NotRead, parse_value
from batchbridge_verl.settings import ENGINE, defaults_of, holds


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
