"""`dataclass(frozen=True)` that is made in a third of the time: what every frozen record has in common is written once.

The standard library writes, compiles and runs six functions for every such class, which is a quarter of what a check of
a configuration would take. Here only `__init__` is its own; the rest are the same functions for all. For records of a
command: those that a run makes by the thousand are the standard library's own. Standard library only.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, kw_only=False, repr=True):
        """As `dataclasses.dataclass`. Records that inherit from others are left to it."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, kw_only=kw_only, repr=repr)
        if not frozen or any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
            return dataclasses.dataclass(cls, frozen=frozen, kw_only=kw_only, repr=repr)
        made = dataclasses.dataclass(cls, eq=False, repr=False, kw_only=kw_only)
        made.__dataclass_params__.frozen = made.__dataclass_params__.eq = True
        compared = [each.name for each in dataclasses.fields(made) if each.compare]
        made._compared = attrgetter(*compared or ["__class__"])
        for name, function in _SHARED.items():
            if made.__dict__.get(name) is None and (repr or name != "__repr__"):
                setattr(made, name, function)
        return made


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


_SHARED = {"__eq__": _equal, "__hash__": _hash, "__repr__": _repr, "__setattr__": _set, "__delattr__": _delete}
