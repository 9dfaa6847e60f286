"""The value of a Python expression, as far as the text decides it. Nothing is executed: what `operations` knows is done
on plain values, and everything else is unknown."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pyread import operations
from pyread.values import (
    Accepted,
    Call,
    Class,
    Function,
    Instance,
    OneOf,
    Parser,
    Scope,
    Symbol,
    Undecided,
    UnknownValue,
    bounded,
    named,
    plain,
    same,
    text_of,
)

MOST_EXPRESSIONS = 400_000
"""Expressions that are evaluated of one program, a bound for what loops multiply: a second of CPU."""
_SET_BY_LAUNCHERS = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_NNODES"})
"""Environment variables that the launch sets, whatever the default behind them says."""
_ERRORS = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


class Expressions(ABC):
    """The evaluation of expressions. `calls` reads functions and makes objects; `env` has environment variables."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.left = MOST_EXPRESSIONS
        self.caught = 0
        """The handlers around the present statement that go on where it fails."""
        self.filters = False
        """Whether names were held against those that a class takes, which is not read."""

    # ---- what `calls` and `machine` add

    @abstractmethod
    def call_function(self, function: Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The value that a function of the program returns."""

    @abstractmethod
    def make(self, made_of: Symbol | Class, call: Call) -> Any:
        """The object that a call of a class makes."""

    @abstractmethod
    def call_symbol(self, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        """The value of a call of something that is not read. Raises `Undecided`."""

    @abstractmethod
    def word(self, place: Any, node: ast.AST) -> str:
        """A word of `sys.argv`. Raises `Undecided`."""

    @abstractmethod
    def called_one_of(self, made_of: OneOf, call: Call) -> None:
        """Keeps the calls of two classes of which one is called."""

    @abstractmethod
    def call_parser(self, parser: Parser, method: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The value of a method of an argparse parser."""

    @abstractmethod
    def conditions(self) -> tuple[UnknownValue, ...]:
        """The conditions around the present statement that only running would decide."""

    # ---- expressions

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression; an `UnknownValue` where it is open."""
        try:
            return self.of(node, scope)
        except Undecided as undecided:
            return UnknownValue(text_of(node), undecided.unknown.names)
        except _ERRORS:
            return named(text_of(node))

    def plain(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression that holds nothing unknown. Raises `Undecided`."""
        return plain(self.of(node, scope))

    def of(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression; containers may hold unknown values. Raises `Undecided`."""
        act = getattr(self, f"_{type(node).__name__}", None)
        self.left -= 1
        if act is None or self.left < 0:
            raise Undecided(named(text_of(node)))
        found = act(node, scope)
        if isinstance(found, UnknownValue):
            raise Undecided(found)
        return bounded(found)

    def _Constant(self, node: ast.Constant, scope: Scope) -> Any:
        if node.value is not None and not isinstance(node.value, (bool, int, float, str)):
            raise Undecided(named(text_of(node)))
        return node.value

    def _Name(self, node: ast.Name, scope: Scope) -> Any:
        try:
            return scope.find(node.id)
        except KeyError:
            return Symbol(node.id)

    def _NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        scope.names[node.target.id] = found = self.value(node.value, scope)
        return found

    def _Attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.of(node.value, scope), node.attr, node)

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        """An attribute of a value. Raises `Undecided`."""
        if isinstance(owner, Symbol) and name in ("__dataclass_fields__", "model_fields", "__annotations__"):
            return Accepted(owner.name)
        if isinstance(owner, Accepted):
            return owner  # .parameters of a signature
        if isinstance(owner, Symbol):
            return Symbol(f"{owner.name}.{name}")
        if isinstance(owner, Class) and name in owner.own:
            return owner.own[name]
        if isinstance(owner, Scope):  # a module of the program
            return owner.names.get(name, Symbol(name))
        if isinstance(owner, Instance):
            if name in owner.attributes:
                return owner.attributes[name]
            if name in owner.call.arguments:
                return owner.call.arguments[name]
            if owner.made_of is not None and name in owner.made_of.own:
                member = owner.made_of.own[name]
                if isinstance(member, Function) and _is_property(member):
                    return self.call_function(member, [owner], {})
                return member
        if isinstance(owner, dict) and name in owner:  # of OmegaConf, and the like
            return owner[name]
        if isinstance(owner, str) and name == "parents":
            return [str(one) for one in PurePosixPath(owner).parents]
        if isinstance(owner, str) and name in ("parent", "name", "stem"):  # of a path
            return str(getattr(PurePosixPath(owner), name))
        raise Undecided(named(text_of(node)))

    def _BinOp(self, node: ast.BinOp, scope: Scope) -> Any:
        return operations.binary(node, self.of(node.left, scope), self.of(node.right, scope))

    def _UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Any:
        if isinstance(node.op, ast.Not):
            return not self.truth(node.operand, scope)
        return operations.negated(node, self.plain(node.operand, scope))

    def truth(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is true. Raises `Undecided`."""
        return _truth_of(self.of(node, scope), node)

    def _BoolOp(self, node: ast.BoolOp, scope: Scope) -> Any:
        ends = isinstance(node.op, ast.Or)
        found: Any = None
        for part in node.values:
            found = self.of(part, scope)
            if (isinstance(found, (Scope, Class, Function)) or _truth_of(found, part)) == ends:
                return found
        return found

    def _Compare(self, node: ast.Compare, scope: Scope) -> bool:
        left = self.of(node.left, scope)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.of(right_node, scope)
            if isinstance(op, (ast.Is, ast.IsNot)) and right is None and isinstance(left, Instance):
                return isinstance(op, ast.IsNot)
            if isinstance(right, Accepted) and isinstance(op, (ast.In, ast.NotIn)):
                self.filters = True  # the names that it has not are left out by the program itself
                held = isinstance(op, ast.In)
            else:
                held = operations.compares(op, left, right)
            if not held:
                return False
            left = right
        return True

    def _IfExp(self, node: ast.IfExp, scope: Scope) -> Any:
        try:
            chosen = node.body if self.truth(node.test, scope) else node.orelse
        except Undecided as undecided:
            one, other = self.value(node.body, scope), self.value(node.orelse, scope)
            if same(one, other):
                return one
            if (found := one_of(one, other, undecided.unknown)) is not None:
                return found
            raise
        return self.of(chosen, scope)

    def _JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> str:
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                value = self.plain(part.value, scope)
                form = "" if part.format_spec is None else self.of(part.format_spec, scope)
                if len(form) > operations.LONGEST_FORM:
                    raise Undecided(named(text_of(node)))
                text += format(repr(value) if part.conversion == ord("r") else value, form)
        return text

    def _items(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items = self.value(node.value, scope)
                found += items if isinstance(items, (list, tuple)) else [items]
            else:
                found.append(self.value(node, scope))
        return found

    def _List(self, node: ast.List, scope: Scope) -> list[Any]:
        return self._items(node.elts, scope)

    def _Tuple(self, node: ast.Tuple, scope: Scope) -> tuple[Any, ...]:
        return tuple(self._items(node.elts, scope))

    def _Set(self, node: ast.Set, scope: Scope) -> set[Any]:
        return set(plain(self._items(node.elts, scope)))

    def _Dict(self, node: ast.Dict, scope: Scope) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found.update(self.mapping(self.of(value, scope), value))
            else:
                found[self.plain(key, scope)] = self.value(value, scope)
        return found

    def mapping(self, value: Any, node: ast.AST) -> dict[str, Any]:
        """A value as what stands behind `**`. Raises `Undecided`."""
        if isinstance(value, Instance) and value.complete:
            return dict(value.attributes)
        if not isinstance(value, dict):
            raise Undecided(named(text_of(node)))
        return value

    def _Subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner = self.of(node.value, scope)
        if isinstance(owner, Symbol) and owner.name == "os.environ":
            return self.variable(self.plain(node.slice, scope))
        if isinstance(owner, Symbol) and owner.name == "sys.argv" and not isinstance(node.slice, ast.Slice):
            return self.word(self.plain(node.slice, scope), node)
        if isinstance(node.slice, ast.Slice):
            parts = (node.slice.lower, node.slice.upper, node.slice.step)
            if not isinstance(owner, (str, list, tuple)):
                raise Undecided(named(text_of(node)))
            return owner[slice(*(None if part is None else self.plain(part, scope) for part in parts))]
        if isinstance(owner, (dict, list, tuple, str)):
            return owner[self.plain(node.slice, scope)]
        if isinstance(owner, Instance) and isinstance(name := self.plain(node.slice, scope), str):  # OmegaConf, Box
            return self.attribute(owner, name, node)
        raise Undecided(named(text_of(node)))

    def _comprehended(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> Any:
        if len(node.generators) != 1 or node.generators[0].is_async:
            raise Undecided(named(text_of(node)))
        (part,) = node.generators
        inner = Scope(scope.file, parent=scope)
        found = []
        items = self.of(part.iter, scope)
        if isinstance(items, Accepted):
            return items
        for item in bounded(list(items)):
            self.bind(part.target, item, inner)
            if all(self.truth(test, inner) for test in part.ifs):
                if isinstance(node, ast.DictComp):
                    found.append((self.plain(node.key, inner), self.value(node.value, inner)))
                else:
                    found.append(self.value(node.elt, inner))
        if isinstance(node, ast.DictComp):
            return dict(found)
        return set(plain(found)) if isinstance(node, ast.SetComp) else found

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _comprehended

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Gives a target's names their values."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts: list[Any] = [named(text_of(target))] * len(target.elts)
            if isinstance(value, (list, tuple)) and len(value) == len(target.elts):
                parts = list(value)
            for part, one in zip(target.elts, parts, strict=True):
                self.bind(part.value if isinstance(part, ast.Starred) else part, one, scope)

    # ---- calls

    def _Await(self, node: ast.Await, scope: Scope) -> Any:
        return self.of(node.value, scope)

    def _Call(self, node: ast.Call, scope: Scope) -> Any:
        owner: Any = None
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope)
            method = node.func.attr
            if isinstance(owner, UnknownValue):
                self._arguments(node, scope)  # whose calls count anyway
                raise Undecided(owner)
            if isinstance(owner, (str, dict, list, Parser)):
                positional, keywords, _ = self._arguments(node, scope)
                return self._method(owner, method, positional, keywords, node)
            called = self._method_of(owner, method, node)
        else:
            called = self.of(node.func, scope)
        positional, keywords, call = self._arguments(node, scope)
        if isinstance(called, Function):
            bound = isinstance(owner, Instance) and not _is_static(called)
            return self.call_function(called, [owner, *positional] if bound else positional, keywords)
        if isinstance(called, Class):
            call.name, call.bases, call.methods, call.made_of = called.name, called.bases, called.methods, called
            return self.make(called, call)
        if isinstance(called, Accepted):
            return called  # .keys()
        if isinstance(called, OneOf):
            self.called_one_of(called, call)
            raise Undecided(called.unknown)
        if isinstance(called, Symbol):
            if _is_class(called.name) and called.name not in operations.FUNCTIONS:
                call.name = called.name
                return self.make(called, call)
            return self.call_symbol(called.name, positional, keywords, node)
        raise Undecided(named(text_of(node)))

    def _method_of(self, owner: Any, method: str, node: ast.Call) -> Any:
        try:
            return self.attribute(owner, method, node.func)
        except Undecided:
            if isinstance(owner, Instance):
                return Symbol(f"{owner.call.name}().{method}")
            raise

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any], Call]:
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        call = Call("", scope.place(node), only_if=self.conditions(), node=node, caught=self.caught > 0)
        for part in node.args:
            if isinstance(part, ast.Starred):
                more = self.value(part.value, scope)
                positional += more if isinstance(more, (list, tuple)) else [more]
            else:
                positional.append(self.value(part, scope))
        for keyword in node.keywords:
            place = scope.place(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = self.value(keyword.value, scope)
                call.places[keyword.arg] = place
                continue
            try:
                found = self.mapping(self.of(keyword.value, scope), keyword.value)
            except Undecided as undecided:
                call.loose.append(UnknownValue(f"**{text_of(keyword.value)}", undecided.unknown.names))
                continue
            keywords.update(found)
            call.places |= dict.fromkeys((key for key in found if isinstance(key, str)), place)
        call.arguments, call.positional = dict(keywords), list(positional)
        return positional, keywords, call

    def _method(self, owner: Any, method: str, positional: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        if isinstance(owner, Parser):
            return self.call_parser(owner, method, positional, keywords)
        if isinstance(owner, str) and method in ("expanduser", "resolve", "absolute", "as_posix"):
            return owner  # a path stays the text that it was
        if isinstance(owner, str) and method in operations.TEXT_METHODS:
            return operations.called_on_text(node, owner, method, positional, keywords)
        if isinstance(owner, dict) and method in ("update", *operations.MAPPING_METHODS):
            if self.conditions() and method in ("update", "pop", "setdefault"):
                raise Undecided(self.conditions()[-1])
            if method == "update":
                owner.update(self.mapping(positional[0], node) if positional else {}, **keywords)
                return None
            found = getattr(owner, method)(*positional)
            return found if method in ("get", "pop", "setdefault", "copy") else list(found)
        if isinstance(owner, list) and method in ("append", "extend", "copy", "index") and not self.conditions():
            return getattr(owner, method)(*positional)
        raise Undecided(named(text_of(node)))

    def variable(self, name: str, *default: Any) -> Any:
        """The value of an environment variable. Raises `Undecided`."""
        if name in self.env:
            return self.env[name]
        if not default or name in _SET_BY_LAUNCHERS:
            raise Undecided(UnknownValue(f"os.environ[{name!r}]", (name,)))
        return default[0]


def one_of(one: Any, other: Any, unknown: UnknownValue) -> OneOf | None:
    """Two classes of which one is meant; None where they are no classes."""
    both = [one, other]
    if all(isinstance(part, Class) or (isinstance(part, Symbol) and _is_class(part.name)) for part in both):
        return OneOf((one, other), unknown)
    return None


def _is_class(name: str) -> bool:
    """Whether a full name looks like a class's: CamelCase, or capitals at its start."""
    last = name.rpartition(".")[2]
    return last[:1].isupper() and not last.isupper()


def _is_property(function: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id in ("property", "cached_property") for one in _decorators(function))


def _truth_of(value: Any, node: ast.expr) -> bool:
    """Whether the value of `node` is true: an object is, unless its class may say otherwise. Raises `Undecided`."""
    if isinstance(value, Instance) and value.made_of is not None and value.made_of.always_true:
        return True
    if isinstance(value, (Symbol, Instance, Scope, Class, Function)):
        raise Undecided(named(text_of(node)))
    return bool(value)


def _is_static(function: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in _decorators(function))


def _decorators(function: Function) -> list[ast.expr]:
    return function.node.decorator_list
