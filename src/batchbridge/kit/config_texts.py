"""Settings as text: nested YAML, TOML, and words of a POSIX shell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN_WORD = r"[\w./:@%+\-]+"


def as_groups(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[leaf] = value
    return tree


def nested_yaml(values: Mapping[str, Any]) -> str:
    """Dotted keys as nested YAML."""
    return "\n".join(_yaml(as_groups(values), 0)) + "\n"


def nested_toml(values: Mapping[str, Any]) -> str:
    """Dotted keys as TOML, a table for each group of keys. TOML has no null: such settings are left out."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in values.items():
        table, _, leaf = key.rpartition(".")
        if value is not None:
            tables.setdefault(table, []).append(f"{_toml_key(leaf)} = {_toml(value)}")
    texts = []
    for table, lines in tables.items():
        head = [f"[{'.'.join(map(_toml_key, table.split('.')))}]"] if table else []
        texts += ["\n".join([*head, *lines])] if lines else []
    return "\n\n".join(texts) + "\n"


def shell_word(word: str) -> str:
    """`word`, quoted for a POSIX shell where it must be."""
    return word if re.fullmatch(_PLAIN_WORD, word.replace("=", "")) else "'" + word.replace("'", "'\\''") + "'"


def option_words(name: str, value: Any) -> list[str]:
    """An option with its values as argparse takes them: to it, a word that begins with a dash is an option unless it is
    joined to the one before."""
    words = [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]
    return [f"--{name}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [f"--{name}", *words]


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
    return yaml_float(value) if isinstance(value, float) else json.dumps(value)


def yaml_float(value: float) -> str:
    """A float as YAML, which PyYAML takes for one too: to it, 1e-06 is a text."""
    mantissa, exponent, power = repr(value).partition("e")
    if mantissa in _NO_NUMBERS:
        return _NO_NUMBERS[mantissa]
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"


_NO_NUMBERS = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{_toml_key(key)} = {_toml(inner)}" for key, inner in value.items() if inner is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
