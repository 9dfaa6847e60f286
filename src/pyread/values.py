"""The values of a Python program that is read and not run: plain ones, objects, and what only running would tell."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

LARGEST_INTEGER_BITS = 256
LONGEST_TEXT = 100_000
"""Characters of a text that is made by adding and multiplying."""
DEEPEST = 20
"""Containers inside one another."""
MOST_ITEMS = 10_000
"""Items of a list or mapping."""


class Place(NamedTuple):
    """A line of a file; `cell` counts a notebook's cells from 1, and `line` then counts the lines of that cell."""

    file: str
    line: int
    cell: int | None = None

    def __str__(self) -> str:
        return f"{self.label}:{self.line}"

    @property
    def label(self) -> str:
        """The file's name, with the cell of a notebook."""
        return self.file if self.cell is None else f"{self.file}[cell {self.cell}]"


@dataclass(frozen=True)
class UnknownValue:
    """A value that only running the program would tell: its expression, and the names that it depends on: environment
    variables by their own name, everything else as it is written."""

    expression: str
    names: tuple[str, ...]


class Undecided(Exception):
    """The evaluation has come to an unknown value."""

    def __init__(self, unknown: UnknownValue) -> None:
        super().__init__(unknown.expression)
        self.unknown = unknown


@dataclass(frozen=True)
class Symbol:
    """Something of a module that is not read, by its full name: `trl.GRPOConfig`, `torch.bfloat16`."""

    name: str


@dataclass(eq=False)
class Scope:
    """Names and their values, in a module (`parent` is None), a function, or a class."""

    file: str
    names: dict[str, Any] = field(default_factory=dict)
    parent: Scope | None = None
    cells: tuple[int, ...] = ()
    """The last line of each cell, of a notebook whose cells stand one below the other."""

    def find(self, name: str) -> Any:
        """The value of a name. Raises `KeyError`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        raise KeyError(name)

    @property
    def module(self) -> Scope:
        """The scope of the module that this one is part of."""
        return self if self.parent is None else self.parent.module

    def place(self, node: ast.AST) -> Place:
        """The place of a node of this scope's file."""
        line: int = getattr(node, "lineno", 1)
        start = 0
        for number, last in enumerate(self.module.cells, 1):
            if line <= last:
                return Place(self.file, line - start, number)
            start = last
        return Place(self.file, line)


@dataclass(eq=False)
class Function:
    """A function of the program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: Scope
    entered: bool = False


@dataclass(eq=False)
class Class:
    """A class of the program. `bases`: full names of its ancestors, the nearest first, as far as they are read; `own`:
    its members and those of read ancestors; `fields`: the names of annotated members, in order."""

    name: str
    bases: tuple[str, ...]
    own: Mapping[str, Any]
    fields: tuple[str, ...]
    places: Mapping[str, Place]
    declares: bool
    """Whether its constructor takes the fields: a dataclass, or a class of pydantic's."""
    changed: bool = False
    """Whether something that is not read may make another class of it: a decorator, a metaclass, an ancestor."""

    @property
    def methods(self) -> frozenset[str]:
        """The names of its methods, and of those of ancestors that the program has."""
        return frozenset(name for name, member in self.own.items() if isinstance(member, Function))

    @property
    def always_true(self) -> bool:
        """Whether its objects are true: neither it nor an ancestor has a say in that."""
        strange = (base for base in self.bases if "." in base and not base.endswith((".BaseModel", ".BaseSettings")))
        return not self.changed and not {"__bool__", "__len__"} & self.own.keys() and not any(strange)

    @cached_property
    def asked_of_itself(self) -> frozenset[str]:
        """The names of attributes that its methods ask of itself."""
        nodes = (member.node for member in self.own.values() if isinstance(member, Function))
        parts = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Attribute))
        return frozenset(part.attr for part in parts if isinstance(part.value, ast.Name) and part.value.id == "self")

    @cached_property
    def repeated_over(self) -> frozenset[str]:
        """The attributes of itself over whose range a comprehension in one of its methods runs."""
        nodes = (member.node for member in self.own.values() if isinstance(member, Function))
        loops = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.comprehension))
        return frozenset(name for loop in loops if (name := _range_of_self(loop.iter)) is not None)


@dataclass(eq=False)
class Call:
    """The call of a class: `name` in full (`trl.GRPOConfig`), `bases` the names of the class's ancestors.

    arguments: keyword to value; `UnknownValue` where it is open. places: keyword to place. positional: values in order.
    loose: what stands behind `**` and is not known. only_if: conditions that only running would decide. parsed: the
    program's own command line sets the rest of the arguments. fields: names that classes of the program declare.
    methods: names of the methods that the class has from classes of the program. made_of: the class, if it is one.
    node: the call as it is written. caught: a handler goes on where the call fails.
    """

    name: str
    place: Place
    bases: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    positional: list[Any] = field(default_factory=list)
    loose: list[UnknownValue] = field(default_factory=list)
    only_if: tuple[UnknownValue, ...] = ()
    parsed: bool = False
    fields: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    made_of: Class | None = None
    node: ast.Call | None = None
    caught: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """The arguments that the call itself gives by name."""
        return () if self.node is None else tuple(one.arg for one in self.node.keywords if one.arg is not None)

    @property
    def unpacked(self) -> bool:
        """Whether it may give others, too: behind `*` or `**`, or as the dots of an excerpt."""
        if self.node is None:
            return True
        starred = any(isinstance(one, ast.Starred) or ast.unparse(one) == "..." for one in self.node.args)
        return starred or any(one.arg is None for one in self.node.keywords)

    def is_a(self, *names: str) -> bool:
        """Whether the class, or an ancestor of it, has one of these last names."""
        return any(name.rpartition(".")[2] in names for name in (self.name, *self.bases))


def _range_of_self(node: ast.expr) -> str | None:
    """NAME of `range(self.NAME)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
        first = node.args[0]
        if isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name) and first.value.id == "self":
            return first.attr
    return None


@dataclass(eq=False)
class Instance:
    """An object that a call of a class made. `attributes`: what is known of it; those of `call.arguments` too."""

    call: Call
    made_of: Class | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    """Whether it has no other attributes than these."""


@dataclass(frozen=True)
class OneOf:
    """One of two classes: which of them, only running the program would tell."""

    classes: tuple[Symbol | Class, ...]
    unknown: UnknownValue


@dataclass(frozen=True)
class Accepted:
    """The names that a class which is not read takes, as `inspect.signature` and `dataclasses.fields` tell them."""

    of: str


class StartedCommand(NamedTuple):
    """A command that the program starts as a process: its words, unknown ones among them. env: environment variables
    that the program gives it."""

    words: tuple[Any, ...]
    place: Place
    env: Mapping[str, str] = {}


@dataclass(eq=False)
class Parser:
    """An argparse parser: option's field to its default, and the words that give it."""

    defaults: dict[str, Any] = field(default_factory=dict)
    options: dict[str, ParserOption] = field(default_factory=dict)


class ParserOption(NamedTuple):
    """One option of a parser: the field that it sets, the function that converts a word ("int", ...), the words that it
    takes (0, 1, or None for many), and the value that it stands for where it takes none."""

    field: str
    kind: str | None
    words: int | None
    constant: Any = True


def unknown_in(value: Any, depth: int = 0, seen: set[int] | None = None) -> UnknownValue | None:
    """The unknown value that `value` is, or holds; None where it is plain. An object counts as unknown. seen:
    identities of containers that were looked into."""
    if isinstance(value, UnknownValue):
        return value
    if value is None or isinstance(value, (bool, int, float, str)):
        return None
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        seen = set() if seen is None else seen
        if depth > DEEPEST or (depth and id(value) in seen):
            return None if depth <= DEEPEST else UnknownValue("a deep value", ("a deep value",))
        seen.add(id(value))
        parts: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return next((found for part in parts if (found := unknown_in(part, depth + 1, seen)) is not None), None)
    name = shown(value)
    return UnknownValue(name, (name,))


def shown(value: Any) -> str:
    """A value that is not a plain one, for a person."""
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, Instance):
        return f"{value.call.name.rpartition('.')[2]}(...)"
    if isinstance(value, Accepted):
        return f"the parameters of {value.of}"
    return type(value).__name__


def plain(value: Any) -> Any:
    """`value`, which holds nothing unknown. Raises `Undecided`."""
    if (unknown := unknown_in(value)) is not None:
        raise Undecided(unknown)
    return value


def bounded(value: Any) -> Any:
    """`value`. Raises `Undecided` where it is too large to be a setting."""
    large = (
        (isinstance(value, int) and value.bit_length() > LARGEST_INTEGER_BITS)
        or (isinstance(value, (str, bytes)) and len(value) > LONGEST_TEXT)
        or (isinstance(value, (list, tuple, dict, set)) and len(value) > MOST_ITEMS)
    )
    if large:
        raise Undecided(UnknownValue("a very large value", ("a very large value",)))
    return value


def named(*names: str) -> UnknownValue:
    """An unknown value that depends on these names."""
    return UnknownValue(names[0], names)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same for whoever reads them."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except RecursionError:
        return False


def text_of(node: ast.AST) -> str:
    """An expression as it is written, cut to what fits in a line. Kept with the node: a function is read as often as it
    is called, and its expressions stay as they are written."""
    kept = vars(node)
    if _TEXT not in kept:
        kept[_TEXT] = _written(node)
    text: str = kept[_TEXT]
    return text


def _written(node: ast.AST) -> str:
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        return "a deep expression"
    return text if len(text) <= 60 else f"{text[:57]}..."


def stored_in(node: ast.AST) -> frozenset[str]:
    """The names that a statement binds, wherever in it; kept with the node, as its text is."""
    kept = vars(node)
    if _STORED not in kept:
        inner = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
        kept[_STORED] = frozenset(one.id for one in inner)
    names: frozenset[str] = kept[_STORED]
    return names


_TEXT, _STORED = "batchbridge_text", "batchbridge_stored"
"""Attributes of nodes that these two keep."""
