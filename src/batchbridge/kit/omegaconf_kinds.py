"""Kinds of values as OmegaConf and Hydra hand them on; see `batchbridge.kit.typed_values`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from batchbridge.kit.kinds import Kind, or_null_schema
from batchbridge.kit.omegaconf import FINITE, number
from batchbridge.kit.parser_kinds import NUMBER_TEXT, any_case
from batchbridge.kit.typed_values import convert

_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": ["number", "string"], "pattern": f"^({FINITE})$"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "list": {"type": "array", "items": {"type": ["number", "string", "boolean"]}},
    "any": {},
}


def _kind(name: str) -> Kind:
    schema = _SCHEMAS[name.rstrip("?")]
    return Kind(name, name, functools.partial(convert, name), or_null_schema(schema) if name[-1] == "?" else schema)


INT, FLOAT, BOOL, TEXT, LIST, ANY = (_kind(name) for name in ("int", "float", "bool", "str", "list", "any"))
OPTIONAL_INT, OPTIONAL_FLOAT, OPTIONAL_BOOL = (_kind(name) for name in ("int?", "float?", "bool?"))
OPTIONAL_TEXT, OPTIONAL_LIST = _kind("str?"), _kind("list?")
"""Where null is legal, too."""


_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def structured(kind: Kind) -> Kind:
    """The kind in a structured configuration, where OmegaConf converts text to the field's type. Source: omegaconf 2.3
    nodes.py."""
    name, schema = kind.name.rstrip("?"), kind.schema
    if name in _TEXTS:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema = {**schema, "type": list(dict.fromkeys([*types, "string"])), "pattern": _TEXTS[name]}
    return kind._replace(convert=lambda value: kind.convert(_typed(name, value)), schema=schema)


_WHOLE = r"[-+]?[0-9]+"
_TEXTS: Mapping[str, str] = {
    "int": rf"^\s*{_WHOLE}\s*$",
    "float": f"^({FINITE})$|{NUMBER_TEXT}",
    "bool": "^(" + "|".join(map(any_case, _FLAGS)) + ")$",
}
"""Texts that a typed field converts, as patterns of a JSON Schema."""


def _typed(kind: str, value: Any) -> Any:
    if not isinstance(value, str) or len(value) > 40:
        return value
    if kind == "int":
        return int(value) if re.fullmatch(_WHOLE, value.strip()) else value
    if kind == "float" and number(value) is None:
        try:
            return float(value)
        except ValueError:
            return value
    return _FLAGS.get(value.lower(), value) if kind == "bool" else value
