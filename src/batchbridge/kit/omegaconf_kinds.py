"""Kinds of values as OmegaConf and Hydra hand them on: is a value of its key's kind?

They hand on what they read; verl's dataclasses check little of it, and most wrong values fail far from their cause.
`1e-6` is a float to OmegaConf and text to PyYAML; `omegaconf_said` makes a number of it, and text that is left is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from batchbridge.kit.kinds import LARGEST, Kind, WrongValue, flag, or_null, text
from batchbridge.kit.omegaconf import FINITE, typed
from batchbridge.kit.parser_kinds import NUMBER_TEXT, any_case


def _kind(name: str, expected: str, convert: Callable[[Any], Any], schema: Mapping[str, Any]) -> Kind:
    def given(value: Any) -> Any:
        if value is None:
            raise WrongValue(f"{expected}, not null")
        return convert(value)

    return Kind(name, name, given, schema)


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        return value
    raise WrongValue("an integer")


def _whole(value: Any) -> int:
    return _integer(int(value) if isinstance(value, float) and value.is_integer() else value)


_TRUE = ("true", "yes", "on", "1")


def _truth(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUE:
        return True
    raise WrongValue("true or false", "it is asked for its truth: text counts as true, whatever it says")


def _float(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST:
        return float(value)
    raise WrongValue("a finite number")


def _sequence(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float, str)) for item in value):
        return [_float(item) if isinstance(item, float) else item for item in typed(list(value))]
    raise WrongValue("a list")


def _any(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool, list)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise WrongValue("a plain value")


INT = _kind("int", "an integer", _integer, {"type": "integer"})
FLOAT = _kind("float", "a number", _float, {"type": ["number", "string"], "pattern": f"^({FINITE})$"})
BOOL = _kind("bool", "true or false", flag.convert, {"type": "boolean"})
TRUTH = Kind(
    "truth",
    "true or false",
    _truth,
    {"type": ["boolean", "number", "string", "null"], "pattern": "^(" + "|".join(map(any_case, _TRUE)) + ")$"},
)
"""A flag that is asked for its truth alone, of whatever type."""
WHOLE = _kind("int", "an integer", _whole, {"type": "integer"})
"""A number that is compared and divided by alone: 3.0 is 3."""
TEXT = _kind("str", "text", text.convert, {"type": "string"})
LIST = _kind("list", "a list", _sequence, {"type": "array", "items": {"type": ["number", "string", "boolean"]}})
ANY = Kind("any", "any", _any)
OPTIONAL_INT, OPTIONAL_FLOAT, OPTIONAL_BOOL, OPTIONAL_TEXT, OPTIONAL_LIST = map(or_null, (INT, FLOAT, BOOL, TEXT, LIST))
OPTIONAL_TRUTH, OPTIONAL_WHOLE = map(or_null, (TRUTH, WHOLE))
"""Kinds with null as a legal value, too."""


_FLAGS = {**dict.fromkeys(("true", "yes", "y", "on"), True), **dict.fromkeys(("false", "no", "n", "off"), False)}


def structured(kind: Kind) -> Kind:
    """The kind in a structured configuration, where OmegaConf converts text to the field's type, whole numbers to flags
    and every scalar to text. Source: omegaconf 2.3 nodes.py."""
    name, schema = kind.name.rstrip("?"), kind.schema
    if name in _TYPES:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema = {**schema, "type": list(dict.fromkeys([*types, *_TYPES[name]]))}
        schema |= {"pattern": _TEXTS[name]} if name in _TEXTS else {}
    return kind._replace(convert=lambda value: kind.convert(_typed(name, value)), schema=schema)


_WHOLE = r"[-+]?[0-9]+"
_TEXTS: Mapping[str, str] = {
    "int": rf"^\s*{_WHOLE}\s*$",
    "float": f"^({FINITE})$|{NUMBER_TEXT}",
    "bool": rf"^\s*{_WHOLE}\s*$|^(" + "|".join(map(any_case, _FLAGS)) + ")$",
}
"""Texts that a typed field converts, as patterns of a JSON Schema."""
_TYPES = {"int": ["string"], "float": ["string"], "bool": ["integer", "string"], "str": ["number", "boolean"]}
"""JSON types that it converts beside its own."""


def _typed(kind: str, value: Any) -> Any:
    if kind == "str" and isinstance(value, (bool, int, float, date)):
        return str(value)
    if kind == "bool" and isinstance(value, int):
        return value != 0
    if not isinstance(value, str) or len(value) > 40:
        return value
    if kind in ("int", "bool") and re.fullmatch(_WHOLE, value.strip()):
        return int(value) if kind == "int" else int(value) != 0
    if kind == "float":
        try:
            return float(value)
        except ValueError:
            return value
    return _FLAGS.get(value.lower(), value) if kind == "bool" else value
