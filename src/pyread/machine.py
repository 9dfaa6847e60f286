"""The statements of a Python program, read in the order in which they would run.

What is decided is followed; a branch that only running would decide is read on both sides, and names that end with two
values are unknown behind it. A loop over known items is read for each of them, every other loop once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyread import arguments
from pyread.expressions import FUNCTIONS, OF_A_TRAINING_MACHINE, Expressions, named, same, text_of
from pyread.values import (
    Call,
    Class,
    Function,
    Instance,
    Parser,
    Place,
    Scope,
    Symbol,
    Undecided,
    UnknownValue,
)

MOST_STATEMENTS = 20_000
"""Statements that are read of one program: enough for any script, and a bound for what loops multiply."""
DEEPEST = 24
"""Functions that call each other."""
MOST_TURNS = 64
"""Turns of a loop that are read one by one."""
_ENDS = ("sys.exit", "exit", "quit", "os._exit")

Module = tuple[ast.Module, Scope]
FindModule = Callable[[str, str], "tuple[str, str] | None"]
"""(dotted name, file that imports it) to (text, file), or None where it is not a file of the program."""
LoadFile = Callable[[str], Any]
"""A path that the program opens, to the settings in that file; None where it has none."""


class _Returned(Exception):
    """A `return` on a path that is decided."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Ended(Exception):
    """A `raise`, or the end of the program."""


class _LoopEnds(Exception):
    """A `break` or `continue`."""

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks


class Machine(Expressions):
    """A program while it is read: the calls of classes that were met, in order, the modules that were imported, and
    what was `assumed` of the machine."""

    def __init__(
        self, env: Mapping[str, str], words: Sequence[str] | None, find_module: FindModule, load_file: LoadFile
    ) -> None:
        super().__init__(env)
        self.words, self.find_module, self.load_file = words, find_module, load_file
        self.calls: list[Call] = []
        self.imported: set[str] = set()
        self.functions: list[Function] = []
        self.assumed: set[str] = set()
        self._modules: dict[str, Scope] = {}
        self._conditions: list[UnknownValue] = []
        self._depth = 0
        self._left = MOST_STATEMENTS
        self.exhausted = False
        self._undecided_return: list[bool] = [False]

    def conditions(self) -> tuple[UnknownValue, ...]:
        """The open conditions, the outermost first."""
        return tuple(self._conditions)

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
        try:
            self.run(tree.body, scope)
        except (_Ended, _Returned, _LoopEnds, RecursionError):
            return

    def read_the_rest(self, main: Scope) -> None:
        """Reads functions of the module `main` that nothing was seen to call: something outside calls them (fire,
        typer, modal, ...)."""
        for function in list(self.functions):
            if not function.entered and function.scope.module is main and _makes_something(function.node):
                try:
                    self.call_function(function, [], {})
                except (_Ended, Undecided, RecursionError):
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
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            before, self._conditions = self._conditions, []
            self.run_module(tree, scope)
            self._conditions = before
        return self._modules[path]

    # ---- statements

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Reads statements one after the other."""
        for statement in body:
            self._left -= 1
            if self._left < 0:
                self.exhausted = True
                raise _Ended
            act = getattr(self, f"_run_{type(statement).__name__}", None)
            if act is not None:
                act(statement, scope)

    def _run_Expr(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def _run_Return(self, node: ast.Return, scope: Scope) -> None:
        value = None if node.value is None else self.value(node.value, scope)
        raise _Returned(value)

    def _run_Raise(self, node: ast.Raise, scope: Scope) -> None:
        raise _Ended

    def _run_Break(self, node: ast.Break, scope: Scope) -> None:
        raise _LoopEnds(True)

    def _run_Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise _LoopEnds(False)

    def _run_Assert(self, node: ast.Assert, scope: Scope) -> None:
        self.value(node.test, scope)

    def _run_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            self.imported.add(alias.name)
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            own = self.module(name, scope.file)
            scope.names[alias.asname or name] = Symbol(name) if own is None else own

    def _run_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        name = "." * node.level + (node.module or "")
        own = self.module(name, scope.file)
        full = name.lstrip(".")
        if own is None:
            self.imported.add(full)
        for alias in node.names:
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
        for base in node.bases:
            found = self.value(base, scope)
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
        own |= {name: _default(value) for name, value in inner.names.items()}
        scope.names[node.name] = Class(node.name, tuple(bases), own, tuple(fields), places, declares)

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
            if isinstance(error, (_Ended, _Returned, _LoopEnds)):
                raise
            self._both(node.body, node.orelse, named(text_of(node.test)), scope)
        else:
            try:
                self.run(node.body if chosen else node.orelse, scope)
            except _Ended:
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
                except (_Ended, _Returned, _LoopEnds) as raised:
                    end = raised
            ends.append((dict(scope.names), end))
        (first, first_end), (second, second_end) = ends
        scope.names.clear()
        if first_end is not None and second_end is not None:
            scope.names.update(first)
            if isinstance(first_end, _Returned) and isinstance(second_end, _Returned):
                raise _Returned(first_end.value if same(first_end.value, second_end.value) else unknown)
            raise first_end if isinstance(first_end, _Returned) else second_end
        if first_end is not None or second_end is not None:
            scope.names.update(second if first_end is not None else first)
            if isinstance(first_end or second_end, _Returned):
                self._undecided_return[-1] = True
            return
        for name in {**first, **second}:
            if name in first and name in second:
                scope.names[name] = first[name] if same(first[name], second[name]) else unknown
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
                except _LoopEnds as end:
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
            for inner in ast.walk(part):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and inner.id in scope.names:
                    scope.names[inner.id] = unknown
        self._both(body, [], unknown, scope)

    def _run_With(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, value, scope)
        self.run(node.body, scope)

    _run_AsyncWith = _run_With

    def _run_Try(self, node: ast.Try | ast.TryStar, scope: Scope) -> None:
        before = dict(scope.names)
        self.run(node.body, scope)
        self.run(node.orelse, scope)
        after = dict(scope.names)
        for handler in node.handlers:
            unknown = named("an exception of the lines above")
            scope.names.clear()
            scope.names.update(before)
            with self._only_if(unknown):
                try:
                    self.run(handler.body, scope)
                except (_Ended, _Returned, _LoopEnds):
                    continue
            for name, value in scope.names.items():
                if not same(value, before.get(name)) and not same(value, after.get(name)):
                    after[name] = unknown
        scope.names.clear()
        scope.names.update(after)
        self.run(node.finalbody, scope)

    _run_TryStar = _run_Try

    # ---- calls

    def call_function(self, function: Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The value that a function returns; an unknown one where a branch that is open returns."""
        function.entered = True
        if self._depth >= DEEPEST:
            raise Undecided(named(f"{function.node.name}(...)"))
        inner = Scope(function.scope.file, parent=function.scope)
        self._bind_parameters(function, positional, keywords, inner)
        self._depth += 1
        self._undecided_return.append(False)
        unknown = named(f"{function.node.name}(...)")
        try:
            self.run(function.node.body, inner)
            value: Any = None
        except _Returned as returned:
            value = returned.value
        except (_LoopEnds, _Ended):
            value = unknown
        finally:
            self._depth -= 1
            open_return = self._undecided_return.pop()
        return unknown if open_return else value

    def _bind_parameters(
        self, function: Function, positional: list[Any], keywords: dict[str, Any], inner: Scope
    ) -> None:
        takes = function.node.args
        names = [part.arg for part in (*takes.posonlyargs, *takes.args)]
        for part in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs):
            inner.names[part.arg] = named(part.arg)
        defaults = zip(reversed(names), reversed(takes.defaults), strict=False)
        pairs = [*defaults, *zip((part.arg for part in takes.kwonlyargs), takes.kw_defaults, strict=True)]
        for name, node in pairs:
            if node is not None:
                inner.names[name] = self.value(node, function.scope)
        if names and not positional and _reads_the_command(function.node):
            inner.names[names[0]] = self._of_annotation(function, inner.names[names[0]])
        inner.names |= dict(zip(names, positional, strict=False))
        inner.names |= {key: value for key, value in keywords.items() if key in inner.names}
        if takes.vararg is not None:
            inner.names[takes.vararg.arg] = list(positional[len(names) :])
        if takes.kwarg is not None:
            inner.names[takes.kwarg.arg] = {key: one for key, one in keywords.items() if key not in inner.names}

    def _of_annotation(self, function: Function, otherwise: Any) -> Any:
        """The object that a decorator makes of the command line, for a parameter of a class of the program."""
        for decorator in function.node.decorator_list:
            if isinstance(decorator, ast.Call) and text_of(decorator.func) == "hydra.main":
                return self._hydra(decorator, function, otherwise)
        first = (*function.node.args.posonlyargs, *function.node.args.args)[0]
        made_of = None if first.annotation is None else self.value(first.annotation, function.scope)
        return self._parsed(made_of, function.scope.place(function.node)) if isinstance(made_of, Class) else otherwise

    def _hydra(self, decorator: ast.Call, function: Function, otherwise: Any) -> Any:
        """The settings that `hydra.main` composes: its file, and below it those that the file's `defaults` name. Words
        of the command line change them; with such, they are not known."""
        said = {one.arg: self.value(one.value, function.scope) for one in decorator.keywords}
        folder, name = said.get("config_path"), said.get("config_name")
        if not isinstance(folder, str) or not isinstance(name, str) or self.words:
            return otherwise
        found = self.load_file(f"{folder}/{name.removesuffix('.yaml')}.yaml")
        if not isinstance(found, dict):
            return otherwise
        composed: dict[str, Any] = {}
        for entry in found.get("defaults", []):
            if entry == "_self_":
                continue
            group, option = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (None, entry)
            below = self.load_file(f"{folder}/{f'{group}/' if group else ''}{option}.yaml")
            plain = isinstance(below, dict) and "defaults" not in below and (group is None or group.isidentifier())
            if not plain:
                return otherwise
            _merge(composed, below if group is None else {group: below})
        _merge(composed, {key: value for key, value in found.items() if key != "defaults"})
        return composed

    def make(self, made_of: Symbol | Class, call: Call) -> Any:
        """An object; the call is kept."""
        name = call.name.rpartition(".")[2]
        if name == "ArgumentParser":
            return Parser()
        if name in arguments.OF_DATACLASSES:
            return self._parser_of_dataclasses(name, call)
        if isinstance(made_of, Class):
            return self._instance(made_of, call)
        if name in ("SimpleNamespace", "Namespace", "Box", "EasyDict", "ConfigDict", "AttrDict"):
            first = call.positional[0] if call.positional and isinstance(call.positional[0], dict) else {}
            return Instance(call, None, {**first, **call.arguments}, complete=not call.loose)
        self.calls.append(call)
        return Instance(call)

    def _instance(self, made_of: Class, call: Call) -> Instance:
        """An object of a class of the program. Fields that have defaults are arguments, too: a subclass of a
        framework's configuration hands them on."""
        made = Instance(call, made_of)
        call.fields = frozenset(made_of.fields)
        start = made_of.own.get("__init__")
        if isinstance(start, Function):
            self.calls.append(call)
            self.call_function(start, [made, *call.positional], dict(call.arguments))
            return made
        given = dict(zip(made_of.fields, call.positional, strict=False)) | call.arguments
        defaults = {name: made_of.own[name] for name in made_of.fields if name in made_of.own}
        call.places = {name: made_of.places[name] for name in defaults if name in made_of.places} | call.places
        call.arguments = {**defaults, **given}
        made.attributes = {**call.arguments}
        made.complete = made_of.declares and not call.loose and not made_of.bases
        self.calls.append(call)
        after = made_of.own.get("__post_init__")
        if isinstance(after, Function):
            self.call_function(after, [made], {})
        return made

    def _parser_of_dataclasses(self, name: str, call: Call) -> Any:
        """HfArgumentParser, TrlParser, ...: what its dataclasses become when it has read the command line."""
        classes = call.positional[0] if call.positional else call.arguments.get("dataclass_types", [])
        classes = list(classes) if isinstance(classes, (list, tuple)) else [classes]
        parser = Parser()
        parser.defaults["\0classes"] = [(one, call.place) for one in classes if isinstance(one, (Symbol, Class))]
        return parser

    def call_parser(self, parser: Parser, method: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The value of a parser's method; options are kept in the parser."""
        if "\0classes" in parser.defaults:
            if method.startswith("parse_"):
                return tuple(self._parsed(one, place) for one, place in parser.defaults["\0classes"])
            raise Undecided(named(f"the parser's {method}(...)"))
        if method in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        if method == "add_argument":
            arguments.add(parser, positional, keywords)
            return None
        if method == "set_defaults":
            parser.defaults |= keywords
            return None
        if method in ("parse_args", "parse_known_args"):
            found = arguments.parsed(parser, self.words)
            call = Call("argparse.Namespace", Place("", 0), arguments=found)
            made = Instance(call, None, found, complete=True)
            return made if method == "parse_args" else (made, [])
        raise Undecided(named(f"the parser's {method}(...)"))

    def _parsed(self, made_of: Symbol | Class, place: Place) -> Any:
        bases = made_of.bases if isinstance(made_of, Class) else ()
        call = Call(made_of.name, place, bases, only_if=self.conditions(), parsed=True)
        made = self._instance(made_of, call) if isinstance(made_of, Class) else Instance(call)
        if isinstance(made_of, Class):
            given = arguments.fields_of(made_of.fields, made_of.own, self.words)
            made.attributes |= given
            call.arguments |= given
        else:
            self.calls.append(call)
        return made

    def call_symbol(self, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        """The value of a call of something that is known by its full name alone."""
        if name in _ENDS:
            raise _Ended
        if name in FUNCTIONS:
            return self.known_call(name, positional, keywords)
        last = name.rpartition(".")[2]
        if (answer := OF_A_TRAINING_MACHINE.get(name, OF_A_TRAINING_MACHINE.get(last))) is not None:
            self.assumed.add(f"{name}()")
            return answer
        first = positional[0] if positional else None
        if name in ("os.environ.get", "os.getenv") and isinstance(first, str):
            default = positional[1] if len(positional) > 1 else keywords.get("default")
            return self.variable(first, default)
        if name in ("os.path.join", "os.path.dirname", "os.path.basename"):
            return _path(last, self._plain(positional))
        if name in ("open", "io.open") and isinstance(first, str):
            return Instance(Call("open", Place("", 0)), None, {"path": first})
        if name in arguments.LOADERS or last in ("open_yaml",):
            return self._loaded(positional, node)
        if name in ("vars", "dataclasses.asdict", "asdict") and isinstance(first, Instance):
            return self.mapping(first, node)
        if name in ("copy.deepcopy", "copy.copy", "deepcopy") and isinstance(first, (dict, list)):
            return _copied(first)
        if name == "getattr" and len(positional) > 1 and isinstance(positional[1], str):
            try:
                return self.attribute(first, positional[1], node)
            except Undecided:
                if len(positional) > 2 and isinstance(first, Instance) and first.complete:
                    return positional[2]
                raise
        if name in arguments.CALLED_WITH_A_CLASS and isinstance(first, (Symbol, Class)):
            return self._parsed(first, Place("", 0))
        if name in ("fire.Fire", "tyro.cli", "typer.run") and isinstance(first, Function):
            return self.call_function(first, [], {})
        if name in ("dataclasses.field", "field"):
            return _field(keywords)
        if isinstance(first, Function) and last in ("run", "spawn", "launch", "main"):  # asyncio.run, mp.spawn
            return self.call_function(first, [], {})
        raise Undecided(named(text_of(node)))

    def _loaded(self, positional: list[Any], node: ast.Call) -> Any:
        first = positional[0] if positional else None
        path = first.attributes.get("path") if isinstance(first, Instance) else first
        if isinstance(path, str) and (found := self.load_file(path)) is not None:
            return found
        raise Undecided(named(path if isinstance(path, str) else text_of(node)))


class _NoDefault:
    """The default of a field that has none."""


def _field(keywords: Mapping[str, Any]) -> Any:
    if "default" in keywords:
        return keywords["default"]
    factory = keywords.get("default_factory")
    if isinstance(factory, Symbol) and factory.name in ("list", "dict", "set"):
        return FUNCTIONS[factory.name]()
    return _NoDefault if factory is None else named("a default_factory")


def _default(value: Any) -> Any:
    return named("a value that has no default") if value is _NoDefault else value


def _names_of(part: ast.stmt) -> list[str]:
    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
        return [part.target.id]
    if isinstance(part, ast.Assign):
        return [target.id for target in part.targets if isinstance(target, ast.Name)]
    return []


def _path(function: str, parts: list[str]) -> str:
    from pathlib import PurePosixPath

    if function == "join":
        return str(PurePosixPath(*parts))
    found = PurePosixPath(parts[0])
    return str(found.parent) if function == "dirname" else found.name


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            into[key] = dict(into[key]) if isinstance(into.get(key), dict) else {}
            _merge(into[key], value)
        else:
            into[key] = value


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _reads_the_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator gives a function what the command line says: `pyrallis.wrap`, `hydra.main`."""
    names = (text_of(one).partition("(")[0] for one in node.decorator_list)
    return any(name.endswith(".wrap") or name == "hydra.main" for name in names)


def _makes_something(node: ast.AST) -> bool:
    """Whether a function calls something with keywords, or something that looks like a class."""
    return any(isinstance(part, ast.Call) and part.keywords for part in ast.walk(node))
