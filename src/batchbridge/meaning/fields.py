"""Fields of nested groups of dataclasses: their types and quantities, a walk over them, and groups from plain mappings.

A leaf is annotated `Annotated[type, Quantity(...)]`; every other field is a group. Annotations are not text in the
modules of the schema (no `from __future__ import annotations` there): evaluating them later would cost more than all
rules.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from batchbridge.meaning.quantity import Quantity

_T = TypeVar("_T")


class SpecField(NamedTuple):
    """A field of a group: its name, its dotted path, its quantity (None: it is a group), its type, and its default
    (`dataclasses.MISSING`: it has none)."""

    name: str
    path: str
    quantity: Quantity | None
    type: Any
    default: Any

    @property
    def options(self) -> tuple[Any, ...]:
        """The types that it takes: those of a union, or the one."""
        return options(self.type)


@cache
def places(group: Any, prefix: str = "") -> tuple[SpecField, ...]:
    """The fields of a group, in order. A specification is walked often."""
    found = []
    for name, hint in group.__annotations__.items():
        plain, quantity = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        found.append(SpecField(name, f"{prefix}{name}", quantity, plain, group.__dataclass_fields__[name].default))
    return tuple(found)


def options(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation offers: those of a union, or the one."""
    return (hint,) if get_origin(hint) in (Literal, tuple) or not get_args(hint) else get_args(hint)


def walk(group: Any, prefix: str = "") -> Iterator[tuple[str, Any, Quantity]]:
    """Every leaf field of a specification as (dotted path, value, quantity), in schema order; a group that may be
    missing, and is, has none."""
    for name, path, quantity, kind, _ in places(type(group), prefix):  # type: ignore[arg-type]  # classes are hashable
        value = getattr(group, name)
        if quantity is not None:
            yield path, value, quantity
        elif value is not None or type(None) not in options(kind):
            yield from walk(value, f"{path}.")


def leaves(group: type, prefix: str = "") -> Iterator[SpecField]:
    """Every leaf field that a group may have, in schema order."""
    for place in places(group, prefix):
        if place.quantity is not None:
            yield place
        else:
            yield from leaves(place.options[0], f"{place.path}.")


def replaced(group: Any, fields: Mapping[str, Any]) -> Any:
    """A copy of a group with dotted fields replaced."""
    inner: dict[str, dict[str, Any]] = {}
    flat: dict[str, Any] = {}
    for path, value in fields.items():
        name, _, rest = path.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            flat[name] = value
    flat |= {name: replaced(flat.get(name, getattr(group, name)), values) for name, values in inner.items()}
    return dataclasses.replace(group, **flat)


def built(group: type[_T], data: Any, path: str = "") -> _T:
    """A group from a mapping of plain values. Raises `ValueError` for unknown, missing or wrong ones."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{path or 'spec'}: expected a mapping, got {type(data).__name__}")
    known = {place.name: place for place in places(group, f"{path}." if path else "")}  # type: ignore[arg-type]  # classes are hashable
    if unknown := sorted(set(data) - set(known), key=str):
        raise ValueError(f"{path or 'spec'}: unknown field {unknown[0]!r}; known: {', '.join(known)}")
    values = {name: _coerced(known[name].options, value, known[name].path) for name, value in data.items()}
    missing = [one.name for one in dataclasses.fields(group) if one.name not in values and _needed(one)]  # type: ignore[arg-type]  # groups are dataclasses
    if missing:
        raise ValueError(f"{path or 'spec'}: missing {', '.join(missing)}")
    return group(**values)


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _coerced(types: tuple[Any, ...], value: Any, path: str) -> Any:
    for option in types:
        if get_origin(option) is tuple:
            if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
                return tuple(value)
        elif dataclasses.is_dataclass(option) and isinstance(option, type):
            if value is None and type(None) in types:
                return None
            return value if isinstance(value, option) else built(option, value, path)
        elif get_origin(option) is Literal:
            if any(value == choice and type(value) is type(choice) for choice in get_args(option)):
                return value
        elif option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        elif isinstance(option, type) and isinstance(value, option) and not (option is int and isinstance(value, bool)):
            return value
    raise ValueError(f"{path}: {value!r} is not {_spelt(types)}")


def _spelt(types: tuple[Any, ...]) -> str:
    words = []
    for option in types:
        if get_origin(option) is Literal:
            words += [repr(choice) for choice in get_args(option)]
        elif get_origin(option) is tuple:
            words.append("a list of names")
        else:
            words.append("null" if option is type(None) else option.__name__)
    return " or ".join(words)
