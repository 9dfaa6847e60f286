"""Kinds of values as OmegaConf and Hydra hand them on; see `batchbridge.kit.typed_values`."""

from __future__ import annotations

import functools
from typing import Any

from batchbridge.kit.kinds import Kind
from batchbridge.kit.omegaconf import number
from batchbridge.kit.typed_values import convert


def _kind(name: str) -> Kind:
    return Kind(name, name, functools.partial(convert, name))


INT, FLOAT, BOOL, TEXT, LIST, ANY = (_kind(name) for name in ("int", "float", "bool", "str", "list", "any"))
OPTIONAL_INT, OPTIONAL_FLOAT, OPTIONAL_BOOL = (_kind(name) for name in ("int?", "float?", "bool?"))
OPTIONAL_TEXT, OPTIONAL_LIST = _kind("str?"), _kind("list?")
"""Where null is legal, too."""


_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def structured(kind: Kind) -> Kind:
    """The kind in a structured configuration, where OmegaConf converts text to the field's type. Source: omegaconf 2.3
    nodes.py."""
    return kind._replace(convert=lambda value: kind.convert(_typed(kind.name.rstrip("?"), value)))


def _typed(kind: str, value: Any) -> Any:
    if not isinstance(value, str) or len(value) > 40:
        return value
    digits = value.strip().lstrip("+-")
    if kind == "int":
        return int(value) if digits.isascii() and digits.isdigit() else value
    if kind == "float" and number(value) is None:
        try:
            return float(value)
        except ValueError:
            return value
    return _FLAGS.get(value.lower(), value) if kind == "bool" else value
