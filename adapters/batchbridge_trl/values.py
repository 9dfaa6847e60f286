"""One native value at a time: is it of its key's kind, and what does TRL's parser make of it?

TrlParser gives YAML values to argparse as defaults, and argparse converts defaults that are strings with the field's
type; other values pass unchanged (trl 1.16.0 TrlParser.set_defaults_with_config; Python argparse, `_get_value`). So
`learning_rate: 1e-6`, a string to PyYAML, becomes the float 1e-06, and `num_generations: "16"` the integer 16.
A `GRPOConfig(...)` call converts nothing; there, integers in quotes are refused here, and numbers in quotes are taken
where the key is a float, because `1e-6` is what a YAML loader hands on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from batchbridge.kit import LARGEST
from batchbridge_trl.settings import CHOICES
from batchbridge_trl.tables import Setting

_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
"""Spellings of flags. Source: transformers HfArgumentParser, string_to_bool."""


class WrongValue(ValueError):
    """The value is not of its key's kind, or too large: what was expected, and what TRL itself would do."""

    def __init__(self, expected: str, native: str, code: str = "BB-TRL-004") -> None:
        super().__init__(expected)
        self.expected, self.native, self.code = expected, native, code

    @classmethod
    def too_large(cls) -> WrongValue:
        """For an integer beyond `LARGEST`."""
        return cls(
            f"an integer of at most {LARGEST:,} in size",
            "it is accepted, and fails in a tensor, a generator or the data loader, or is never reached",
            "BB-TRL-007",
        )


def too_large(value: Any) -> bool:
    """Whether `value` is an integer beyond `LARGEST`, or a mapping or list that holds one at any depth."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, int) and abs(value) > LARGEST:
            return True
        if isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, Mapping) else value)
    return False


def convert(setting: Setting, value: Any, *, parsed: bool) -> Any:
    """`value` as TRL would hold it. `parsed`: it passes through TRL's parser (file or command line), which converts
    strings. Raises `WrongValue`."""
    kind, optional = setting.kind.rstrip("?"), setting.kind.endswith("?")
    if value is None and (optional or kind in ("any", "list", "dict", "json")):
        return None
    converted = _CONVERTERS[kind](setting.key, value, parsed)
    if too_large(converted):
        raise WrongValue.too_large()
    return converted


def _integer(key: str, value: Any, parsed: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and parsed:
        try:
            return int(value)
        except ValueError:
            raise WrongValue("an integer", f"argparse: argument --{key}: invalid int value: {value!r}") from None
    raise WrongValue("an integer", _passes_unchecked(value))


def _number(key: str, value: Any, parsed: bool) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise WrongValue("a number", f"argparse: argument --{key}: invalid float value: {value!r}") from None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise WrongValue("a finite number", "it is accepted, and fails or spreads in arithmetic")
    raise WrongValue("a number", _passes_unchecked(value))


def _flag(key: str, value: Any, parsed: bool) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and parsed and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    if isinstance(value, str) and parsed:
        raise WrongValue("true or false", f"argparse: argument --{key}: Truthy value expected: got {value}")
    raise WrongValue("true or false", _passes_unchecked(value))


def _text(key: str, value: Any, parsed: bool) -> str:
    if isinstance(value, str):
        return value
    hint = "; YAML reads a bare no, off, yes or on as a flag: quote it" if isinstance(value, bool) else ""
    raise WrongValue(f"text{hint}", _passes_unchecked(value))


def _choice(key: str, value: Any, parsed: bool) -> str:
    options, source = CHOICES[key]
    if isinstance(value, str) and value in options:
        return value
    hint = "; YAML reads a bare no as false: quote it" if value is False else ""
    raise WrongValue(f"one of {', '.join(options)}{hint}", f"ValueError: not a valid {source.split()[1]}")


def _scale(key: str, value: Any, parsed: bool) -> str | bool:
    if isinstance(value, (str, bool)):
        return value
    raise WrongValue("group, batch, none, true or false", _passes_unchecked(value))


def _mapping(key: str, value: Any, parsed: bool) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        if not value.startswith("{"):
            return value  # a path to a JSON file
        try:
            import json  # few configurations have such a text

            return json.loads(value)
        except ValueError:
            raise WrongValue("a mapping", "json.JSONDecodeError while the config is constructed") from None
    if hasattr(value, "__dict__"):
        return dict(vars(value))  # accelerate's AcceleratorConfig and ParallelismConfig, on a constructed config
    raise WrongValue("a mapping", _passes_unchecked(value))


def _plain_mapping(key: str, value: Any, parsed: bool) -> Any:
    """A mapping that JSON can say: its values become part of a canonical field."""
    mapping = _mapping(key, value, parsed)
    try:
        import json

        json.dumps(mapping, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise WrongValue("a mapping of text to plain values", _passes_unchecked(value)) from None
    return mapping


def _anything(key: str, value: Any, parsed: bool) -> Any:
    return value


def _passes_unchecked(value: Any) -> str:
    return f"the {type(value).__name__} is taken without a check and fails, or counts as something else, later"


_CONVERTERS = {
    "int": _integer,
    "float": _number,
    "bool": _flag,
    "str": _text,
    "choice": _choice,
    "scale": _scale,
    "dict": _mapping,
    "json": _plain_mapping,
    "list": _anything,
    "any": _anything,
}
