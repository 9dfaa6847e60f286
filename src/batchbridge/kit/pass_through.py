"""Whether a method that overrides another only hands on: its arguments to `super()`, and what that gives to its caller.

Judged by its text, which has to be the text of the code that runs. Beside the one call of `super()` nothing may stand
but what reads clocks and plain numbers, and logs them. Whatever else a body does, it does not pass through: a wrong
"no" costs a word in `allow`, a wrong "yes" would leave a changed step unnamed.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

_READS = frozenset({"float", "int", "len", "round", "bool"})
"""Builtin functions that make a number of what they get."""
_NUMBERS_OF_TENSORS = frozenset({"detach", "cpu", "float", "double", "mean", "sum", "max", "min", "std", "norm", "abs"})
"""Methods of tensors that change nothing of them."""
_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "perf_counter_ns", "time_ns"})
_LOGS = frozenset({"debug", "info", "warning", "error", "log"})
_LOGGING_MODULES = frozenset({"logging", "wandb"})


def passes_through(cls: type, method: str) -> bool:
    """Whether the method of a class's own only hands on what it gets to the next class's, and what that gives back."""
    function = vars(cls).get(method)
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return False
    node = _text_of(function, cls)
    if node is None or node.name != method or node.decorator_list:
        return False
    given = _given(node, function, cls)
    return given is not None and _Body(node, given, function.__globals__, cls).hands_on()


def _text_of(function: FunctionType, cls: type) -> ast.FunctionDef | None:
    """The syntax tree of the code that runs; None where its text is not there, or is another one."""
    runs = function.__code__
    try:
        text = "".join(inspect.findsource(function)[0])
        tree = ast.parse(text)
        # The whole file: what a function is compiled to depends on the names that the file imports.
        whole = compile(text, runs.co_filename, "exec", dont_inherit=True)
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    same = any(_told(made) == _told(runs) for made in _codes(whole))
    cell = dict(zip(runs.co_freevars, function.__closure__ or (), strict=True)).get("__class__")
    if not same or cell is None or cell.cell_contents is not cls:
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return next((node for node in nodes if node.lineno == runs.co_firstlineno), None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _told(code: CodeType) -> tuple[Any, ...]:
    from batchbridge.kit.code_names import written_name  # for a run: `check` imports this module, too

    place = written_name(code), code.co_firstlineno
    return *place, code.co_code, code.co_names, code.co_varnames, code.co_freevars, repr(code.co_consts)


def _given(node: ast.FunctionDef, function: FunctionType, cls: type) -> list[str] | None:
    """The names of a method's arguments but the first, as `_Body` looks for them; None where one that is left out would
    not be what it is in the next class's."""
    spec = node.args
    positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    if not positional:
        return None
    own = inspect.signature(function).parameters
    for name in (*positional, *(argument.arg for argument in spec.kwonlyargs)):
        default = own[name].default
        if default is not inspect.Parameter.empty and not _same_default(cls, function.__name__, name, default):
            return None
    starred = [f"*{one.arg}" for one in (spec.vararg,) if one] + [f"**{one.arg}" for one in (spec.kwarg,) if one]
    return [*positional, *(f"={argument.arg}" for argument in spec.kwonlyargs), *starred]


def _same_default(cls: type, method: str, name: str, default: object) -> bool:
    for base in cls.__mro__[1:]:
        if method in vars(base):
            try:
                other = inspect.signature(vars(base)[method]).parameters.get(name)
            except (TypeError, ValueError):
                return False
            if other is None or other.default is inspect.Parameter.empty:
                return other is not None  # whoever calls it as it is written says a value
            plain = type(default) in (type(None), bool, int, float, str)
            return plain and repr(other.default) == repr(default)
    return False


class _Body:
    """A method's statements. given: its arguments, the instance first; see `_given`."""

    def __init__(self, node: ast.FunctionDef, given: list[str], scope: Mapping[str, Any], cls: type) -> None:
        self._node, self._scope, self._cls = node, scope, cls
        self._itself, *self._given = given
        self._numbers: set[str] = set()
        """Local names of plain numbers."""
        self._result: str | None = None

    def hands_on(self) -> bool:
        """Whether the body calls `super()` once, with what it got, and ends with what that gave."""
        called = False
        *before, last = self._node.body
        if not isinstance(last, ast.Return) or last.value is None:
            return False
        for statement in before:
            if self._is_native(getattr(statement, "value", None)):
                if called or not self._named(statement):
                    return False
                called = True
            elif not self._is_quiet(statement):
                return False
        if not called:
            return self._is_native(last.value)
        return isinstance(last.value, ast.Name) and last.value.id == self._result

    def _named(self, statement: ast.stmt) -> bool:
        """Whether the statement gives the result a name of its own."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        (target,) = statement.targets
        if not isinstance(target, ast.Name) or target.id in self._taken:
            return False
        self._result = target.id
        return True

    @property
    def _taken(self) -> set[str | None]:
        arguments = {name.lstrip("*=") for name in self._given}
        return {self._itself, *arguments, *self._numbers, self._result}

    def _is_native(self, node: object) -> bool:
        """Whether an expression is the call of the next class's method with all that came."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        if node.func.attr != self._node.name or not self._is_super(node.func.value):
            return False
        handed = []
        for argument in node.args:
            inner = argument.value if isinstance(argument, ast.Starred) else argument
            if not isinstance(inner, ast.Name):
                return False
            handed.append(("*" if isinstance(argument, ast.Starred) else "") + inner.id)
        for keyword in node.keywords:
            if not isinstance(keyword.value, ast.Name) or keyword.arg not in (None, keyword.value.id):
                return False
            handed.append(("**" if keyword.arg is None else "=") + keyword.value.id)
        places = [name for name in handed if name[0] not in "*="]
        in_order = [name for name in self._given if name in places]
        by_name = sorted(name.lstrip("=") for name in handed) == sorted(name.lstrip("=") for name in self._given)
        return by_name and places == in_order == self._given[: len(places)]

    def _is_super(self, node: ast.expr) -> bool:
        if not (isinstance(node, ast.Call) and self._is_builtin(node.func, {"super"}) and not node.keywords):
            return False
        if not node.args:
            return True
        names = [argument.id for argument in node.args if isinstance(argument, ast.Name)]
        return len(names) == len(node.args) == 2 and names[1] == self._itself and self._scope.get(names[0]) is self._cls

    def _is_builtin(self, node: ast.expr, names: Iterable[str]) -> bool:
        if not isinstance(node, ast.Name) or node.id not in names or node.id in self._taken:
            return False
        return self._scope.get(node.id, vars(builtins)[node.id]) is vars(builtins)[node.id]

    def _is_quiet(self, statement: ast.stmt) -> bool:
        """Whether a statement only reads clocks and numbers, and logs them."""
        if isinstance(statement, ast.Pass):
            return True
        if isinstance(statement, ast.If):
            inside = (*statement.body, *statement.orelse)
            return self._is_number(statement.test) and all(map(self._is_quiet, inside))
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            (target,) = statement.targets
            if not (isinstance(target, ast.Name) and self._is_number(statement.value)):
                return False
            if target.id in self._taken - self._numbers:
                return False
            self._numbers.add(target.id)
            return True
        if not isinstance(statement, ast.Expr):
            return False
        return isinstance(statement.value, ast.Constant) or self._is_log(statement.value)

    def _is_log(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or not all(map(self._is_number, node.args)):
            return False
        if not all(keyword.arg and self._is_number(keyword.value) for keyword in node.keywords):
            return False
        if self._is_builtin(node.func, {"print"}):
            return True
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in _LOGS):
            return False
        owner = self._global(node.func.value)
        if isinstance(owner, ModuleType):
            return owner.__name__ in _LOGGING_MODULES
        return isinstance(owner, logging.Logger)

    def _global(self, node: ast.expr) -> Any:
        known = isinstance(node, ast.Name) and node.id not in self._taken
        return self._scope.get(node.id) if known and isinstance(node, ast.Name) else None

    def _is_number(self, node: ast.expr) -> bool:
        """Whether an expression is a plain number or text, or some of them, and making it changes nothing."""
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return name in self._numbers
            case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(map(self._is_number, parts))
            case ast.FormattedValue(value=value, format_spec=form):
                return self._is_number(value) and (form is None or self._is_number(form))
            case ast.Dict(keys=keys, values=values):
                return all(key is not None and self._is_number(key) for key in keys) and all(
                    map(self._is_number, values)
                )
            case ast.BinOp(left=left, right=right):
                return self._is_number(left) and self._is_number(right)
            case ast.UnaryOp(operand=operand):
                return self._is_number(operand)
            case ast.BoolOp(values=values):
                return all(map(self._is_number, values))
            case ast.Compare(left=left, comparators=others):
                return all(map(self._is_number, (left, *others)))
            case ast.Attribute():
                return self._is_own(node)
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._is_read(function, arguments)
        return False

    def _is_read(self, function: ast.expr, arguments: list[ast.expr]) -> bool:
        """Whether a call makes a number: of a clock, of a tensor (`loss.item()`), or by a builtin function."""
        if isinstance(function, ast.Attribute) and not arguments:
            if function.attr in _CLOCKS:
                return self._global(function.value) is time
            return function.attr == "item" and self._is_value(function.value)
        first, *rest = arguments or [ast.Starred(ast.Constant(None))]
        made = self._is_builtin(function, _READS) and (self._is_value(first) or self._is_number(first))
        return made and all(map(self._is_number, rest))

    def _is_value(self, node: ast.expr) -> bool:
        """Whether an expression is an argument or the result, or what is read of it."""
        match node:
            case ast.Name(id=name):
                return name == self._result or name in {one.lstrip("*=") for one in self._given}
            case ast.Subscript(value=value, slice=ast.Constant()):
                return self._is_value(value)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]):
                return name in _NUMBERS_OF_TENSORS and self._is_value(value)
        return False

    def _is_own(self, node: ast.expr) -> bool:
        """Whether an expression is an attribute of the instance, or of one of its attributes."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id == self._itself
