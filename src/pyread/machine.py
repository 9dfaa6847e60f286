"""The statements of a Python program, read in the order in which they would run.

What is decided is followed; a branch that only running would decide is read on both sides, and names that end with two
values are unknown behind it. A loop over known items is read for each of them, every other loop once.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from pyread.calls import ENDS, Calls, Ended, LoadFile, LoopEnds, Returned, default_of
from pyread.expressions import one_of
from pyread.values import (
    Class,
    Function,
    Instance,
    Place,
    Scope,
    Symbol,
    Undecided,
    UnknownValue,
    named,
    same,
    stored_in,
    text_of,
)

MOST_STATEMENTS = 20_000
"""Statements that are read of one program: enough for any script, and a bound for what loops multiply."""
MOST_OF_A_FUNCTION = 1_000
"""Statements that are read of one function and what it calls, in all its calls: a simulation that is asked a hundred
times would leave nothing for the configuration behind it."""
MOST_TURNS = 64
"""Turns of a loop that are read one by one."""

FindModule = Callable[[str, str], "tuple[str, str] | None"]
"""(dotted name, file that imports it) to (text, file), or None where it is not a file of the program."""


class Imported(NamedTuple):
    """A module that a program imports: how many it has imported before; the expression that only running the program
    would tell, and on which the import depends (empty: on none)."""

    order: int
    only_if: str


@lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module:
    """The tree of a file's text, which nothing writes into: the programs that a script starts share their modules.
    Raises what `ast.parse` does."""
    return ast.parse(text)


class Machine(Calls):
    """A program while it is read: its statements, with the modules that were imported."""

    def __init__(
        self, env: Mapping[str, str], words: Sequence[str] | None, find_module: FindModule, load_file: LoadFile
    ) -> None:
        super().__init__(env, words, load_file)
        self.find_module = find_module
        self.imported: dict[str, Imported] = {}
        self.names: dict[str, int] = {}
        self.functions: list[Function] = []
        self.trees: dict[str, ast.Module] = {}
        self._modules: dict[str, Scope] = {}
        self._left = MOST_STATEMENTS
        self._spent: Counter[ast.AST] = Counter()
        self.exhausted = False

    @contextmanager
    def _only_if(self, unknown: UnknownValue) -> Iterator[None]:
        self._conditions.append(unknown)
        try:
            yield
        finally:
            self._conditions.pop()

    # ---- modules

    def run_module(self, tree: ast.Module, scope: Scope) -> None:
        """Reads a module from its first statement to its last."""
        self.trees[scope.file] = tree
        try:
            self.run(tree.body, scope)
        except (Ended, Returned, LoopEnds, RecursionError):
            return

    def read_the_rest(self, main: Scope) -> None:
        """Reads functions of the module `main` that nothing was seen to call: something outside calls them (fire,
        typer, modal, ...)."""
        for function in list(self.functions):
            if not function.entered and function.scope.module is main and _makes_something(function.node):
                try:
                    self.call_function(function, [], {})
                except (Ended, Undecided, RecursionError):
                    continue

    def module(self, name: str, file: str) -> Scope | None:
        """A module of the program, read once; None where it is someone else's."""
        found = self.find_module(name, file)
        if found is None:
            return None
        text, path = found
        if path not in self._modules:
            self._modules[path] = scope = Scope(path, {"__name__": name, "__file__": path})
            try:
                tree = parsed(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            before, self._conditions = self._conditions, []
            self.run_module(tree, scope)
            self._conditions = before
        return self._modules[path]

    # ---- statements

    def call_function(self, function: Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The value that a function returns; an unknown one also where its earlier calls had all that is read of it."""
        if self._spent[function.node] >= MOST_OF_A_FUNCTION:
            self.exhausted = True
            return named(f"{function.node.name}(...)")
        before = self._left
        try:
            return super().call_function(function, positional, keywords)
        finally:
            self._spent[function.node] += before - self._left

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Reads statements one after the other."""
        for statement in body:
            self._left -= 1
            if self._left < 0:
                self.exhausted = True
                raise Ended
            act = getattr(self, f"_run_{type(statement).__name__}", None)
            if act is not None:
                act(statement, scope)

    def _run_Expr(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def _run_Return(self, node: ast.Return, scope: Scope) -> None:
        value = None if node.value is None else self.value(node.value, scope)
        raise Returned(value)

    def _run_Raise(self, node: ast.Raise, scope: Scope) -> None:
        if node.exc is not None:
            self.value(node.exc, scope)  # raise SystemExit(main())
        raise Ended

    def _run_Break(self, node: ast.Break, scope: Scope) -> None:
        raise LoopEnds(True)

    def _run_Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise LoopEnds(False)

    def _run_Assert(self, node: ast.Assert, scope: Scope) -> None:
        self.value(node.test, scope)

    def _run_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            self._imports(alias.name)
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            own = self.module(name, scope.file)
            scope.names[alias.asname or name] = Symbol(name) if own is None else own

    def _imports(self, name: str) -> None:
        """Notes a module that is someone else's where it is first met."""
        only_if = self._conditions[-1].expression if self._conditions else ""
        self.imported.setdefault(name, Imported(len(self.imported), only_if))

    def _run_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        name = "." * node.level + (node.module or "")
        own = self.module(name, scope.file)
        full = name.lstrip(".")
        if own is None:
            self._imports(full)
        for alias in node.names:
            self.names[f"{full}.{alias.name}"] = len(self.imported)
            if alias.name == "*":
                scope.names |= {key: one for key, one in (own.names if own else {}).items() if not key.startswith("_")}
                continue
            found: Any = Symbol(f"{full}.{alias.name}" if full else alias.name)
            if own is not None:
                below = own.names.get(alias.name)
                if below is None:  # a module of a package
                    below = self.module(f"{name}.{alias.name}" if full else f"{name}{alias.name}", scope.file)
                found = found if below is None else below
            scope.names[alias.asname or alias.name] = found

    def _run_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        function = Function(node, scope)
        self.functions.append(function)
        scope.names[node.name] = function

    _run_AsyncFunctionDef = _run_FunctionDef

    def _run_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        inner = Scope(scope.file, parent=scope)
        fields = [name for part in node.body if isinstance(part, ast.AnnAssign) for name in _names_of(part)]
        own: dict[str, Any] = {}
        places: dict[str, Place] = {}
        bases: list[str] = []
        declares = any("dataclass" in text_of(one) for one in node.decorator_list)
        changed = bool(node.keywords) or any("dataclass" not in text_of(one) for one in node.decorator_list)
        for base in node.bases:
            found = self.value(base, scope)
            changed = changed or not isinstance(found, (Class, Symbol)) or (isinstance(found, Class) and found.changed)
            if isinstance(found, Class):
                bases += [found.name, *found.bases]
                own |= found.own
                places |= found.places
                fields = [*found.fields, *(name for name in fields if name not in found.fields)]
                declares = declares or found.declares
            elif isinstance(found, Symbol):
                bases.append(found.name)
        declares = declares or any(name.endswith((".BaseModel", "BaseSettings")) for name in bases)
        self.run(node.body, inner)
        for part in node.body:
            for name in _names_of(part):
                places[name] = scope.place(part)
        own |= {name: default_of(value) for name, value in inner.names.items()}
        scope.names[node.name] = Class(node.name, tuple(bases), own, tuple(fields), places, declares, changed)

    def _run_Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self._assign(target, value, scope)

    def _run_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._assign(node.target, self.value(node.value, scope), scope)

    def _run_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        read = ast.copy_location(ast.parse(ast.unparse(node.target), mode="eval").body, node)
        value = self.value(ast.copy_location(ast.BinOp(read, node.op, node.value), node), scope)
        self._assign(node.target, value, scope)

    def _run_Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                owner, key = self.value(target.value, scope), self.value(target.slice, scope)
                if isinstance(owner, dict) and isinstance(key, (str, int)) and not self._conditions:
                    owner.pop(key, None)

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, (ast.Name, ast.Tuple, ast.List)):
            self.bind(target, value, scope)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if isinstance(owner, Instance):
                self._put(owner.attributes, target.attr, value)
                if owner.made_of is None or target.attr in owner.made_of.fields or owner.made_of.bases:
                    self._put(owner.call.arguments, target.attr, value)
                    owner.call.places[target.attr] = scope.place(target)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            if isinstance(owner, Symbol) and owner.name == "os.environ" and isinstance(key, str):
                if isinstance(value, str) and not self._conditions:
                    self.env = {**self.env, key: value}
            elif isinstance(owner, dict) and isinstance(key, (str, int)):
                self._put(owner, key, value)
            elif isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
                owner[key] = named(text_of(target)) if self._conditions else value

    def _put(self, into: dict[Any, Any], key: Any, value: Any) -> None:
        """Sets an item that other names may see, too: behind an open condition it is unknown which value it has."""
        if self._conditions and not (key in into and same(into[key], value)):
            value = UnknownValue(self._conditions[-1].expression, self._conditions[-1].names)
        into[key] = value

    # ---- branches and loops

    def _run_If(self, node: ast.If, scope: Scope) -> None:
        try:
            chosen = self.truth(node.test, scope)
        except Undecided as undecided:
            self._both(node.body, node.orelse, UnknownValue(text_of(node.test), undecided.unknown.names), scope)
        except Exception as error:
            if isinstance(error, (Ended, Returned, LoopEnds)):
                raise
            self._both(node.body, node.orelse, named(text_of(node.test)), scope)
        else:
            try:
                self.run(node.body if chosen else node.orelse, scope)
            except Ended:
                return  # the program is one that trains: what decided this was not known well enough

    def _both(self, one: Sequence[ast.stmt], other: Sequence[ast.stmt], unknown: UnknownValue, scope: Scope) -> None:
        """Reads two branches of which one runs. A branch that ends the program has no say in what follows."""
        before = dict(scope.names)
        ends: list[tuple[dict[str, Any], BaseException | None]] = []
        for body in (one, other):
            scope.names.clear()
            scope.names.update(before)
            end: BaseException | None = None
            with self._only_if(unknown):
                try:
                    self.run(body, scope)
                except (Ended, Returned, LoopEnds) as raised:
                    end = raised
            ends.append((dict(scope.names), end))
        (first, first_end), (second, second_end) = ends
        scope.names.clear()
        if first_end is not None and second_end is not None:
            scope.names.update(first)
            if isinstance(first_end, Returned) and isinstance(second_end, Returned):
                raise Returned(first_end.value if same(first_end.value, second_end.value) else unknown)
            raise first_end if isinstance(first_end, Returned) else second_end
        if first_end is not None or second_end is not None:
            scope.names.update(second if first_end is not None else first)
            if isinstance(first_end or second_end, Returned):
                self._undecided_return[-1] = True
            return
        for name in {**first, **second}:
            if name in first and name in second:
                either = one_of(first[name], second[name], unknown)
                scope.names[name] = first[name] if same(first[name], second[name]) else either or unknown
            else:
                scope.names[name] = unknown

    def _run_Match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            pattern = case.pattern
            if isinstance(pattern, ast.MatchValue) and isinstance(subject, (str, int)) and case.guard is None:
                if same(self.value(pattern.value, scope), subject):
                    return self.run(case.body, scope)
                continue
            if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and case.guard is None:
                return self.run(case.body, scope)
            return self._both(case.body, [], named(text_of(node.subject)), scope)
        return None

    def _run_For(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        items = self.value(node.iter, scope)
        if isinstance(items, dict):
            items = list(items)
        if isinstance(items, (list, tuple)) and len(items) <= MOST_TURNS:
            for item in items:
                self.bind(node.target, item, scope)
                try:
                    self.run(node.body, scope)
                except LoopEnds as end:
                    if end.breaks:
                        return
            self.run(node.orelse, scope)
            return
        unknown = named(text_of(node.iter))
        self.bind(node.target, unknown, scope)
        self._once(node.body, unknown, scope)

    _run_AsyncFor = _run_For

    def _run_While(self, node: ast.While, scope: Scope) -> None:
        self._once(node.body, named(text_of(node.test)), scope)

    def _once(self, body: Sequence[ast.stmt], unknown: UnknownValue, scope: Scope) -> None:
        """Reads a loop's body once: what it changes is unknown in it and behind it."""
        for part in body:
            for name in stored_in(part) & scope.names.keys():
                scope.names[name] = unknown
        self._both(body, [], unknown, scope)

    def _run_With(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, value, scope)
        self.run(node.body, scope)

    _run_AsyncWith = _run_With

    def _run_Try(self, node: ast.Try, scope: Scope) -> None:
        before = dict(scope.names)
        caught = any(map(_goes_on, node.handlers))
        self.caught += caught
        try:
            self.run(node.body, scope)
        finally:
            self.caught -= caught
        self.run(node.orelse, scope)
        after = dict(scope.names)
        for handler in node.handlers:
            unknown = named("an exception of the lines above")
            scope.names.clear()
            scope.names.update(before)
            with self._only_if(unknown):
                try:
                    self.run(handler.body, scope)
                except (Ended, Returned, LoopEnds):
                    continue
            for name, value in scope.names.items():
                if not same(value, before.get(name)) and not same(value, after.get(name)):
                    after[name] = unknown
        scope.names.clear()
        scope.names.update(after)
        self.run(node.finalbody, scope)

    _run_TryStar = _run_Try


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the program goes on behind a handler that a wrong call may come to."""
    last = handler.body[-1]
    ends = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and text_of(last.value.func) in ENDS
    )
    caught = ("all of them",) if handler.type is None else [text_of(one) for one in _alternatives(handler.type)]
    return not ends and any(one in ("all of them", "TypeError", "Exception", "BaseException") for one in caught)


def _alternatives(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else (node,)


def _names_of(part: ast.stmt) -> list[str]:
    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
        return [part.target.id]
    if isinstance(part, ast.Assign):
        return [target.id for target in part.targets if isinstance(target, ast.Name)]
    return []


def _makes_something(node: ast.AST) -> bool:
    """Whether a function calls something with keywords, or something that looks like a class."""
    return any(isinstance(part, ast.Call) and part.keywords for part in ast.walk(node))
