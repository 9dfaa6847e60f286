"""Kinds of values as argparse hands them on, its options made from a dataclass (transformers' HfArgumentParser).

Text converts with the field's type; other values pass unchanged, and unchecked. So `learning_rate: 1e-6`, text to
PyYAML, is the float 1e-06, and `num_generations: "16"` the integer 16. In a `WrongValue`, `native` says what the
framework would do; `{key}` there stands for the option's name. Source: Python argparse `_get_value`; transformers
HfArgumentParser `string_to_bool`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from batchbridge.kit.kinds import Kind, WrongValue, or_null
from batchbridge.rules.nearest_numbers import LARGEST

TRUE, FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
"""Spellings of flags."""


def passes_unchecked(value: Any) -> str:
    """The words for what becomes of a value of another type."""
    return f"the {type(value).__name__} is taken without a check and fails, or counts as something else, later"


def too_large(value: Any) -> bool:
    """Whether `value` is an integer beyond `LARGEST`, or a mapping or list that holds one at any depth."""
    if value is None or isinstance(value, (int, float, str)):  # nearly all; a conversion asks a thousand times
        return isinstance(value, int) and abs(value) > LARGEST
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, int) and abs(value) > LARGEST:
            return True
        if isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, Mapping) else value)
    return False


def choice(words: tuple[str, ...], enumeration: str, native: str = "") -> Kind:
    """One of these words, which a framework makes an `enumeration` of. native: what it does with another."""
    expected = f"one of {', '.join(words)}"

    def convert(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        hint = "; YAML reads a bare no as false: quote it" if value is False else ""
        raise WrongValue(f"{expected}{hint}", native or f"ValueError: not a valid {enumeration}")

    return Kind("choice", expected, convert, {"enum": list(words)})


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise WrongValue("an integer", passes_unchecked(value))
    try:
        return int(value)
    except ValueError:
        raise WrongValue("an integer", f"argparse: argument --{{key}}: invalid int value: {value!r}") from None


def _number(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise WrongValue("a number", f"argparse: argument --{{key}}: invalid float value: {value!r}") from None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise WrongValue("a number", passes_unchecked(value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WrongValue("a finite number", "it is accepted, and fails or spreads in arithmetic")
    return number


def _numbers(value: Any) -> Any:
    if value is None or isinstance(value, (list, tuple)):
        return None if value is None else [*map(_number, value)]
    raise WrongValue("a list of numbers", passes_unchecked(_number(value)))


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise WrongValue("true or false", passes_unchecked(value))
    if value.lower() not in TRUE + FALSE:
        raise WrongValue("true or false", f"argparse: argument --{{key}}: Truthy value expected: got {value}")
    return value.lower() in TRUE


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    hint = "; YAML reads a bare no, off, yes or on as a flag: quote it" if isinstance(value, bool) else ""
    raise WrongValue(f"text{hint}", passes_unchecked(value))


def _mapping(value: Any) -> Any:
    if value is None:
        return None
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
        return dict(vars(value))  # an object of the framework's, on a constructed config
    raise WrongValue("a mapping", passes_unchecked(value))


def _plain_mapping(value: Any) -> Any:
    mapping = _mapping(value)
    try:
        import json

        json.dumps(mapping, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise WrongValue("a mapping of text to plain values", passes_unchecked(value)) from None
    return mapping


def any_case(word: str) -> str:
    """A pattern; JSON Schema has none that ignores the case."""
    return "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in word)


_DIGITS = r"[0-9]+(_[0-9]+)*"
_EXPONENT = rf"([eE][-+]?{_DIGITS})?"
WHOLE_TEXT = rf"^\s*[-+]?{_DIGITS}\s*$"
NUMBER_TEXT = rf"^\s*[-+]?({_DIGITS}(\.({_DIGITS})?)?|\.{_DIGITS}){_EXPONENT}\s*$"
"""Texts that `int` and `float` convert, as patterns of a JSON Schema; those of no finite number apart."""
FLAG_TEXT = "^(" + "|".join(map(any_case, TRUE + FALSE)) + ")$"
INT = Kind("int", "an integer", _integer, {"type": ["integer", "string"], "pattern": WHOLE_TEXT})
FLOAT = Kind("float", "a number", _number, {"type": ["number", "string"], "pattern": NUMBER_TEXT})
BOOL = Kind("bool", "true or false", _flag, {"type": ["boolean", "string"], "pattern": FLAG_TEXT})
TEXT = Kind("str", "text", _text, {"type": "string"})
MAPPING = Kind("dict", "a mapping", _mapping, {"type": ["object", "string", "null"]})
PLAIN_MAPPING = Kind("json", "a mapping of text to plain values", _plain_mapping, MAPPING.schema)
"""A mapping that JSON can say: its values become part of a canonical field."""
ANY = Kind("any", "any value", lambda value: value)
ANY_OR_ALONE = ANY._replace(name="any or alone")
"""The kind of an option that may stand alone, too."""
FLOATS = Kind("floats", "a list of numbers", _numbers, {"type": ["array", "null"], "items": FLOAT.schema})
TEXTS = ANY._replace(name="texts")
"""Lists: options that take all words behind them."""
OPTIONAL_INT, OPTIONAL_FLOAT, OPTIONAL_BOOL, OPTIONAL_TEXT = map(or_null, (INT, FLOAT, BOOL, TEXT))
