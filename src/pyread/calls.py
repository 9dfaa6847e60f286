"""Calls in a Python program: values of its own functions, objects of classes, and what its command line sets.

A function is read where it is called; an object is kept with the arguments of its call.
"""

from __future__ import annotations

import ast
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from pyread import arguments
from pyread.expressions import Expressions
from pyread.operations import FUNCTIONS, called
from pyread.values import (
    Accepted,
    Call,
    Class,
    Function,
    Instance,
    OneOf,
    Parser,
    Place,
    Scope,
    StartedCommand,
    Symbol,
    Undecided,
    UnknownValue,
    named,
    plain,
    text_of,
)

DEEPEST_CALL = 24
"""Functions that call each other."""
OF_A_TRAINING_MACHINE: Mapping[str, bool] = {
    "is_bf16_supported": True,
    "is_bfloat16_supported": True,
    "torch.cuda.is_available": True,
}
"""Questions to the machine, by full or last name, with the answer of one that trains; each is noted."""
_ACCEPTED = ("inspect.signature", "dataclasses.fields", "fields", "typing.get_type_hints")
_COLLECT = ("set", "list", "tuple", "frozenset", "sorted", "dict")
_STARTS = frozenset(
    {
        *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")),
        *(f"os.{name}" for name in ("execv", "execvp", "execve", "execvpe", "system", "popen")),
    }
)
"""Functions that start a command, which is the first word or, behind a file, the second."""
ENDS = ("sys.exit", "exit", "quit", "os._exit")
"""Functions that end the program."""

LoadFile = Callable[[str], Any]
"""A path that the program opens, to the settings in that file; None where it has none."""


class Returned(Exception):
    """A `return` on a path that is decided."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Ended(Exception):
    """A `raise`, or the end of the program."""


class LoopEnds(Exception):
    """A `break` or `continue`."""

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks


class Calls(Expressions):
    """The calls of a program: `calls` has those of classes that were met, in order, `started` the commands that it
    starts as processes, `declared` the names that its own parsers and dataclasses take from the command line, `assumed`
    what was assumed of the machine. words: the command line, None where it is not known."""

    def __init__(self, env: Mapping[str, str], words: Sequence[str] | None, load_file: LoadFile) -> None:
        super().__init__(env)
        self.words, self.load_file = words, load_file
        self.calls: list[Call] = []
        self.started: list[StartedCommand] = []
        self.declared: set[str] = set()
        self.composes: tuple[str, str] | None = None
        """The folder, as seen from the program, and the name that `hydra.main` composes."""
        self.assumed: set[str] = set()
        self._conditions: list[UnknownValue] = []
        self._depth = 0
        self._undecided_return: list[bool] = [False]

    @abstractmethod
    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Reads statements one after the other. Raises `Returned`, `Ended` and `LoopEnds`."""

    def conditions(self) -> tuple[UnknownValue, ...]:
        """The open conditions, the outermost first."""
        return tuple(self._conditions)

    def call_function(self, function: Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """The value that a function returns; an unknown one where a branch that is open returns."""
        function.entered = True
        if self._depth >= DEEPEST_CALL:
            raise Undecided(named(f"{function.node.name}(...)"))
        inner = Scope(function.scope.file, parent=function.scope)
        self._bind_parameters(function, positional, keywords, inner)
        self._depth += 1
        self._undecided_return.append(False)
        unknown = named(f"{function.node.name}(...)")
        try:
            self.run(function.node.body, inner)
            value: Any = None
        except Returned as returned:
            value = returned.value
        except (LoopEnds, Ended):
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
        if isinstance(folder, str) and isinstance(name, str) and self.composes is None:
            self.composes = (folder, name.removesuffix(".yaml"))
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
        if call.name == "subprocess.Popen" and call.positional:
            node = ast.Call(ast.Name("Popen"), [], [], lineno=call.place.line)
            self.start(call.positional[0], node, call.arguments.get("env"))
        if name in ("SimpleNamespace", "Namespace", "Box", "EasyDict", "ConfigDict", "AttrDict"):
            first = call.positional[0] if call.positional and isinstance(call.positional[0], dict) else {}
            return Instance(call, None, {**first, **call.arguments}, complete=not call.loose)
        self.calls.append(call)
        return Instance(call)

    def word(self, place: Any, node: ast.AST) -> str:
        """A word of `sys.argv`. Raises `Undecided`."""
        words = self.words or ()
        if isinstance(place, int) and 0 < place <= len(words) and not words[place - 1].startswith(arguments.OPEN):
            return words[place - 1]
        raise Undecided(named(text_of(node)))

    def count_of_words(self, node: ast.AST) -> int:
        """The length of `sys.argv`. Raises `Undecided` where the command line is not known, or a word may be more."""
        if self.words is None or any(word.startswith(arguments.OPEN) for word in self.words):
            raise Undecided(named(text_of(node)))
        return len(self.words) + 1

    def called_one_of(self, made_of: OneOf, call: Call) -> None:
        """Keeps the calls of two classes of which one is called."""
        for one in made_of.classes:
            kept = replace(call, name=one.name, only_if=(*call.only_if, made_of.unknown))
            if isinstance(one, Class):
                kept = replace(kept, bases=one.bases, methods=one.methods, made_of=one)
            self.calls.append(kept)

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
            if (settings := self._settings_of(method, positional, keywords)) is not None:
                self.filters = self.filters or keywords.get("allow_extra_keys") is True
                return tuple(self._made_of(one, place, settings) for one, place in parser.defaults["\0classes"])
            if method.startswith("parse"):
                return tuple(self._parsed(one, place) for one, place in parser.defaults["\0classes"])
            raise Undecided(named(f"the parser's {method}(...)"))
        if method in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        if method == "add_argument":
            arguments.add(parser, positional, keywords)
            self.declared |= parser.defaults.keys()
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

    def _settings_of(self, method: str, positional: list[Any], keywords: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The settings of the file that a parser of dataclasses is given: by its caller, or as the first word of the
        command line. None: it is given none, or one that is not here."""
        words = self.words or ()
        if method in ("parse_yaml_file", "parse_json_file"):
            path = positional[0] if positional else keywords.get("yaml_file", keywords.get("json_file"))
        elif method in ("parse", "parse_yaml_and_args", "parse_args_into_dataclasses"):
            path = words[0] if words and words[0].endswith((".yaml", ".yml", ".json")) else None
        else:
            return None
        found = self.load_file(path) if isinstance(path, str) else None
        return found if isinstance(found, dict) else None

    def _made_of(self, made_of: Symbol | Class, place: Place, settings: Mapping[str, Any]) -> Any:
        """The object that a parser makes of a file's settings: of a class that is not read, of those that no other
        class of the program has."""
        mine = {key: one for key, one in settings.items() if isinstance(key, str)}
        if isinstance(made_of, Class) and not made_of.bases:
            mine = {key: one for key, one in mine.items() if key in made_of.fields}
        else:
            mine = {key: one for key, one in mine.items() if key not in self.declared}
        bases = made_of.bases if isinstance(made_of, Class) else ()
        call = Call(made_of.name, place, bases, dict(mine), only_if=self.conditions())
        if isinstance(made_of, Class):
            self.declared |= {*made_of.fields}
        return self.make(made_of, call)

    def _parsed(self, made_of: Symbol | Class, place: Place) -> Any:
        bases = made_of.bases if isinstance(made_of, Class) else ()
        call = Call(made_of.name, place, bases, only_if=self.conditions(), parsed=True)
        made = self._instance(made_of, call) if isinstance(made_of, Class) else Instance(call)
        if isinstance(made_of, Class):
            self.declared |= {*made_of.fields}
            given = arguments.fields_of(made_of.fields, made_of.own, self.words)
            made.attributes |= given
            call.arguments |= given
        else:
            self.calls.append(call)
        return made

    def call_symbol(self, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        """The value of a call of something that is known by its full name alone."""
        if name in ENDS:
            raise Ended
        first = positional[0] if positional else None
        of_environment = isinstance(first, Symbol) and first.name == "os.environ"
        if name == "os.environ.copy" or (of_environment and name in ("dict", "copy.copy", "copy.deepcopy")):
            return dict(self.env)
        if isinstance(first, Accepted) and name in _COLLECT:
            return first
        if name in _ACCEPTED and isinstance(first, (Symbol, Class)):
            return Accepted(first.name)
        if name == "len" and isinstance(first, Symbol) and first.name == "sys.argv":
            return self.count_of_words(node)
        if name in FUNCTIONS:
            return called(name, positional, keywords)
        last = name.rpartition(".")[2]
        if name in _STARTS:
            alone = name.startswith("subprocess.") or len(positional) < 2
            self.start(first if alone else positional[1], node, keywords.get("env"))
        if (answer := OF_A_TRAINING_MACHINE.get(name, OF_A_TRAINING_MACHINE.get(last))) is not None:
            self.assumed.add(f"{name}()")
            return answer
        if name in ("os.environ.get", "os.getenv") and isinstance(first, str):
            default = positional[1] if len(positional) > 1 else keywords.get("default")
            return self.variable(first, default)
        if name in ("os.path.join", "os.path.dirname", "os.path.basename"):
            return _path(last, plain(positional))
        reads = name in ("open", "io.open", "pathlib.Path") or name in arguments.LOADERS
        if reads and isinstance(first, UnknownValue):
            raise Undecided(first)
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

    def start(self, words: Any, node: ast.Call, env: Any) -> None:
        """Keeps a command that the program starts: a list of words, or a line. env: its variables."""
        if isinstance(words, str):
            try:
                words = shlex.split(words)
            except ValueError:
                return
        if isinstance(words, (list, tuple)) and words:
            own = isinstance(words[0], Symbol) and words[0].name == "sys.executable"
            said = env if isinstance(env, dict) else self.env
            known = {key: one for key, one in said.items() if isinstance(key, str) and isinstance(one, str)}
            words = ("python", *words[1:]) if own else tuple(words)
            self.started.append(StartedCommand(words, Place("", node.lineno), known))

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


def default_of(value: Any) -> Any:
    """The default that a field of a class has; an unknown value where `dataclasses.field` gave it none."""
    return named("a value that has no default") if value is _NoDefault else value


def _path(function: str, parts: list[str]) -> str:
    if function == "join":
        return str(PurePosixPath(*parts))
    found = PurePosixPath(parts[0])
    return str(found.parent) if function == "dirname" else found.name


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            into[key] = dict(into[key]) if isinstance(into.get(key), dict) else {}
            _merge(into[key], value)
        else:
            into[key] = value


def _reads_the_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator gives a function what the command line says: `pyrallis.wrap`, `hydra.main`."""
    names = (text_of(one).partition("(")[0] for one in node.decorator_list)
    return any(name.endswith(".wrap") or name == "hydra.main" for name in names)
