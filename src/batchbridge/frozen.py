"""`dataclass` that is made in a fifth of the time: what all records have in common is written once.

The standard library writes, compiles and runs up to six functions for every such class, which is a quarter of what a
check of a configuration would take. Here only `__init__` is its own, and stores all values at once; the rest are the
same functions for all. For records of a command: those that a run makes by the thousand are the standard library's own.
Standard library only.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, kw_only=False, repr=True, eq=True):
        """The decorator for records, as `dataclasses.dataclass`; `InitVar` is not known."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, kw_only=kw_only, repr=repr, eq=eq)
        # What inherits from a frozen record has to say that it is one, and gets two functions more of its own.
        inherits = frozen and any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
        made = dataclasses.dataclass(cls, init=False, eq=False, repr=False, kw_only=kw_only, frozen=inherits)
        parameters = made.__dataclass_params__
        parameters.init, parameters.eq, parameters.repr, parameters.frozen = True, eq, repr, frozen
        compared = [each.name for each in dataclasses.fields(made) if each.compare]
        made._compared = attrgetter(*compared or ["__class__"])
        left_out = {*(() if repr else ("__repr__",)), *(() if eq else ("__eq__", "__hash__"))}
        for name, function in {"__init__": _init(made), **(_FROZEN if frozen else _LOOSE)}.items():
            if made.__dict__.get(name) is None and name not in left_out:
                setattr(made, name, function)
        return made


class _Absent:
    """A stand-in in a signature for a value that is made for each record."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()


def _init(made: Any) -> Any:
    """The `__init__` of a class of records."""
    known: dict[str, Any] = {"_ABSENT": _ABSENT}
    taken, by_name, stored, defaults = ["self"], list[str](), list[str](), dict[str, Any]()
    for each in dataclasses.fields(made):
        name = value = each.name
        if each.default is not dataclasses.MISSING:
            defaults[name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            defaults[name], known[f"_make_{name}"] = _ABSENT, each.default_factory
            value = f"_make_{name}() if {name} is _ABSENT else {name}" if each.init else f"_make_{name}()"
        if each.init:
            (by_name if each.kw_only else taken).append(name)
        if each.init or value != name:
            stored.append(f"{name}={value}")
    head = ", ".join([*taken, *(["*", *by_name] if by_name else [])])
    last = "; self.__post_init__()" if hasattr(made, "__post_init__") else ""
    exec(f"def __init__({head}): self.__dict__.update({', '.join(stored)}){last}", known)
    init = known["__init__"]
    init.__defaults__ = tuple(defaults[name] for name in taken if name in defaults)
    init.__kwdefaults__ = {name: defaults[name] for name in by_name if name in defaults}
    init.__qualname__, init.__module__ = f"{made.__qualname__}.__init__", made.__module__
    init.__annotations__ = {each.name: each.type for each in dataclasses.fields(made) if each.init} | {"return": None}
    return init


def _equal(self: Any, other: Any) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented  # type: ignore[no-any-return]  # as every __eq__ may
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    return hash(self._compared(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _set(self: Any, name: str, value: Any) -> None:
    """Sets a field once, as `__init__` does."""
    values = self.__dict__
    if name in values if name in self.__dataclass_fields__ else "__dataclass_fields__" in type(self).__dict__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    values[name] = value


def _delete(self: Any, name: str) -> None:
    if "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


_LOOSE = {"__eq__": _equal, "__hash__": None, "__repr__": _repr}
_FROZEN = {**_LOOSE, "__hash__": _hash, "__setattr__": _set, "__delattr__": _delete}
