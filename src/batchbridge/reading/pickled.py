"""Plain data out of a pickle, without unpickling: what `torch.save` wrote of a run's settings (`training_args.bin`).

The opcodes are listed by `pickletools` and followed on a stack of our own, which knows text, numbers, lists, mappings
and names of classes. Nothing is imported and nothing is called: an object is its class's name with the state that
stands beside it, and an opcode that is not known ends the reading. Source: pickle protocols 0 to 5; torch 2.13
serialization, whose files are archives with a member `data.pkl`, and before torch 1.6 pickles one after the other.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchbridge.reading.documents import read_bytes
from batchbridge.reading.yaml_json import MAX_DEPTH, MAX_NODES, refuse

MAX_BYTES = 4 << 20
"""Largest file, and largest pickle in it once it is unpacked (bytes). Those of transformers have some 10 KiB."""
MAX_OPCODES = 200_000
"""Most opcodes of a pickle."""
_ZIP = b"PK\x03\x04"
_PICKLES = 5
"""Pickles that a file of torch before 1.6 has, one after the other."""
_MARK = object()


@dataclass
class PickledObject:
    """An object of a class that is not imported: the class's full name, the arguments it was made with, its state."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)


def read_pickle(path: Path, file: str) -> PickledObject | None:
    """The object with the most state that a file of `torch.save` holds; None where it holds none.

    Raises `RefusedFile` of a file that is too large, packed too densely, or no pickle.
    """
    data = read_bytes(path, file, MAX_BYTES)
    found = [one for one in _objects(_member(data, file) if data.startswith(_ZIP) else data, file) if one.state]
    return max(found, key=lambda one: len(one.state), default=None)


def plain(value: Any, file: str) -> Any:
    """`value` as a settings file would say it: an enum's member is its value, another object its state, a class its
    name. Raises `RefusedFile` where shared parts make it too large."""
    left = [MAX_NODES]

    def expanded(one: Any, depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or depth > MAX_DEPTH:
            refuse("BB007", f"more than {MAX_NODES:,} values, or nested deeper than {MAX_DEPTH} levels", file)
        if isinstance(one, dict):
            return {str(key): expanded(part, depth + 1) for key, part in one.items() if _plain_key(key)}
        if isinstance(one, list | tuple):
            return [expanded(part, depth + 1) for part in one]
        if isinstance(one, PickledObject):
            if one.state:
                return expanded(one.state, depth + 1)
            return expanded(one.arguments[0], depth + 1) if len(one.arguments) == 1 else one.name
        return one if one is None or isinstance(one, bool | int | float | str) else str(type(one).__name__)

    return expanded(value, 0)


def _plain_key(key: object) -> bool:
    return isinstance(key, str | int)


def _member(data: bytes, file: str) -> bytes:
    """The pickle in an archive; what it unpacks to is bounded, whatever the archive says of it."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
            if len(names) != 1:
                refuse("BB004", "this archive has no data.pkl: torch.save did not write it", file)
            said = archive.getinfo(names[0]).file_size
            if said > MAX_BYTES:
                refuse("BB002", f"its data.pkl unpacks to {said:,} bytes; at most {MAX_BYTES:,} are read", file)
            with archive.open(names[0]) as member:
                unpacked = member.read(MAX_BYTES + 1)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        refuse("BB004", f"this archive cannot be read: {error}", file)
    if len(unpacked) > MAX_BYTES:
        refuse("BB002", f"its data.pkl unpacks to more than the {MAX_BYTES:,} bytes that are read", file)
    return unpacked


def _objects(data: bytes, file: str) -> list[PickledObject]:
    """All objects of the first pickles of `data`."""
    stream, found = io.BytesIO(data), list[PickledObject]()
    for number in range(_PICKLES):
        if stream.tell() >= len(data):
            break
        machine = _Machine(file)
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                machine.step(opcode.name, argument)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            if number and found:
                break  # behind the object's pickle stand keys and bytes of tensors
            refuse("BB004", f"this is no pickle of settings: {error}"[:200], file)
        found += machine.made
    return found


class _Machine:
    """The stack of one pickle."""

    def __init__(self, file: str) -> None:
        self.file, self.stack, self.memo = file, list[Any](), dict[int, Any]()
        self.made: list[PickledObject] = []
        self.steps = 0

    def step(self, name: str, argument: Any) -> None:
        """One opcode. Raises `ValueError` of one that plain data do not need."""
        self.steps += 1
        if self.steps > MAX_OPCODES:
            refuse("BB007", f"more than {MAX_OPCODES:,} opcodes in its pickle", self.file)
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name in _NOTHING:
            pass
        elif (act := _ACTS.get(name)) is not None:
            act(self, argument)
        else:
            raise ValueError(f"its opcode {name} does more than plain data")

    def marked(self) -> list[Any]:
        """The values put since the last mark, taken off with the mark."""
        place = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def make(self, name: Any, arguments: Any) -> None:
        """An object in the place of a call."""
        named = name.name if isinstance(name, PickledObject) else str(name)[:200]
        given = arguments if isinstance(arguments, tuple) else ()
        made = PickledObject(named, given)
        self.made.append(made)
        self.stack.append(made)


def _global(machine: _Machine, argument: Any) -> None:
    machine.stack.append(PickledObject(str(argument).replace(" ", ".", 1)))


def _stack_global(machine: _Machine, argument: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(PickledObject(f"{module}.{name}"))


def _reduce(machine: _Machine, argument: Any) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.make(function, arguments)


def _reduce_ex(machine: _Machine, argument: Any) -> None:
    _, arguments, cls = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.make(cls, arguments)


def _build(machine: _Machine, argument: Any) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    parts = state if isinstance(state, tuple) else (state,)
    if isinstance(target, PickledObject):
        for part in parts:
            if isinstance(part, dict):
                target.state.update({key: value for key, value in part.items() if isinstance(key, str)})


def _append(machine: _Machine, argument: Any) -> None:
    item = machine.stack.pop()
    _extend(machine.stack[-1], [item])


def _appends(machine: _Machine, argument: Any) -> None:
    items = machine.marked()
    _extend(machine.stack[-1], items)


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(items)


def _set_item(machine: _Machine, argument: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _update(machine.stack[-1], [key, value])


def _set_items(machine: _Machine, argument: Any) -> None:
    items = machine.marked()
    _update(machine.stack[-1], items)


def _update(target: Any, items: list[Any]) -> None:
    if isinstance(target, dict):
        target.update({key: value for key, value in zip(items[::2], items[1::2], strict=True) if _plain_key(key)})


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, argument: Any) -> None:
        items = tuple(machine.stack[-count:])
        del machine.stack[-count:]
        machine.stack.append(items)

    return act


def _whole(make: Callable[[list[Any]], Any]) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, argument: Any) -> None:
        machine.stack.append(make(machine.marked()))

    return act


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _by_id(machine: _Machine, argument: Any) -> None:
    """A tensor's storage, which stands elsewhere in the file."""
    machine.stack[-1] = None


def _mapping(items: list[Any]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    _update(made, items)
    return made


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_ARGUMENTS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "PERSID"),
    }
)
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})
_ACTS: dict[str, Callable[[_Machine, Any], None]] = {
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _reduce_ex,
    "BUILD": _build,
    "APPEND": _append,
    "APPENDS": _appends,
    "ADDITEMS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": _whole(tuple),
    "LIST": _whole(list),
    "FROZENSET": _whole(list),
    "DICT": _whole(_mapping),
    "MEMOIZE": _memoize,
    "BINPERSID": _by_id,
}
