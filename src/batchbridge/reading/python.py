"""The way from a Python program or notebook to the `Source` of a configuration that it builds.

A program is read and never run (see `pyread`). Which classes are configurations, the adapters say
(`DetectionFacts.classes`). Several calls are several runs; what a call leaves open is undecided, by its expression.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from batchbridge.contract.detection import DetectionFacts
from batchbridge.contract.reading import BuiltTrainer, Construction, GivenArguments, Source
from batchbridge.meaning.findings import LOOKS_LIKE_TRAINING, Finding, Fix, Where
from batchbridge.reading.arguments import near_file
from batchbridge.reading.launchers import StartedProgram
from batchbridge.reading.looks import trains_by_rewards
from batchbridge.reading.program_files import module_of, settings_of, text_of
from pyread import (
    OPEN,
    Call,
    Instance,
    NotPython,
    Place,
    Program,
    UnknownValue,
    code_of_notebook,
    read_python,
    unknown_in,
)

MAX_BYTES = 32 << 20
"""Largest notebook or program (bytes): outputs of a notebook hold pictures."""
MOST_PROGRAMS = 64
"""Whose trainers are kept, see `trainers_of`."""
_WITHOUT_TRAINING = frozenset(
    {
        *("evaluate", "predict", "evaluation_loop", "prediction_loop", "prediction_step", "get_eval_dataloader"),
        *("get_test_dataloader", "save_model", "save_state", "save_metrics", "log_metrics", "log", "push_to_hub"),
        *("create_model_card", "add_callback", "remove_callback", "pop_callback", "is_world_process_zero"),
        *("model", "args", "processing_class", "tokenizer", "train_dataset", "eval_dataset", "state"),
    }
)
"""Attributes of a Hugging Face trainer (transformers 5, `Trainer`) by which nothing is trained."""


LoadStarted = Callable[..., "Source | None"]
"""The source of a command: `batchbridge.reading.scripts.load_started`."""


def load_python(
    text: str,
    path: Path,
    *,
    env: Mapping[str, str] | None = None,
    framework: str | None = None,
    chosen: int | None = None,
    words: Sequence[str] | None = None,
    load_started: LoadStarted | None = None,
) -> Source:
    """The `Source` of the configuration that a program builds; its problems say what keeps it from being read.

    env: environment variables. framework: whose configuration is meant; None: anybody's. chosen: which of several,
    counted from 1. words: the command line behind the program; None: not known. load_started: reads the commands that
    the program starts; None: they are not read.

    Of a program that takes its settings from its command line alone, the source has the command's words and no more.
    """
    file = str(path)
    try:
        program = _read(text, path, env, words)
    except NotPython as wrong:
        where = (Where(file=file, line=wrong.line),)
        message = f"this file is not read: {wrong.reason}"
        return Source(path=path, problems=(Finding("BB010", "error", "config", message, where, undecided=True),))
    found = runs_of(program, path, framework)
    problems = [_unread_cells(program, file)] if program.unread else []
    if not found and load_started is not None:
        other = _started_by(program, path, env, framework, chosen, words, load_started)
        if other is not None:
            return replace(other, problems=(*problems, *other.problems))
    idle = idle_trainers(program)
    if not found and words and not idle and any(call.parsed for call in program.calls):
        return Source(path=path, argv=("python", file, *words))
    if not found and idle:
        return Source(path=path, problems=(*problems, _idle(idle)), env=dict(env or {}))
    if not found:
        looks = trains_by_rewards(code_of_notebook(text).text if path.suffix == ".ipynb" else text)
        nothing = _nothing(program, file, framework, looks=looks)
        return Source(path=path, problems=(*problems, nothing), env=dict(env or {}))
    if chosen is not None and chosen > len(found):
        message = f"there is no configuration {chosen} in the program; it builds {len(found)}"
        missing = Finding("BB012", "error", "config", message, tuple(_where(one) for one in found))
        return Source(path=path, problems=(*problems, missing), env=dict(env or {}))
    source = found[(chosen or 1) - 1]
    if chosen is None and len(found) > 1:
        problems.append(_several(found))
    return replace(source, problems=(*problems, *source.problems), env=dict(env or {}))


def _started_by(
    program: Program,
    path: Path,
    env: Mapping[str, str] | None,
    framework: str | None,
    chosen: int | None,
    words: Sequence[str] | None,
    load_started: LoadStarted,
) -> Source | None:
    """The source of a training command that a program starts as a process, or whose function it hands what `hydra.main`
    composes; None where it does neither."""
    from batchbridge.contract import plugins

    commands: list[tuple[Sequence[str | tuple[str, ...]], int]] = []
    facts = [one for one in plugins.tells().values() if one is not None]
    known = {name: module for one in facts for name, module in one.functions.items()}
    handed = sorted(program.names.keys() & known.keys())
    if program.composes is not None and handed and words is None:
        return Source(path=path, problems=(_composed_of_overrides(handed[0], str(path)),), env=dict(env or {}))
    if program.composes is not None and (module := next((known[one] for one in handed), None)):
        folder, name = program.composes
        place = (path.parent / folder).resolve()
        said = ("python", "-m", module, f"--config-path={place}", f"--config-name={name}")
        commands.append(((*said, *(words or ())), 1))
    for one in program.started:
        commands.append((tuple(_told(word) for word in one.words), one.place.line))
    told = {name: value for one in program.started for name, value in one.env.items()}
    given = {**told, **(env or {})}
    return load_started(commands, path, env=given, framework=framework, chosen=chosen) if commands else None


def _told(word: Any) -> str | tuple[str, ...]:
    """A word of a command as text, or the names that it depends on."""
    unknown = unknown_in(word)
    return str(word) if unknown is None else unknown.names


def runs_of(program: Program, path: Path, framework: str | None) -> list[Source]:
    """The configurations that a program builds, each as a `Source` without a framework's reading: those that a trainer
    is given where there are such, else all; each that is like another once."""
    from batchbridge.contract import plugins

    known = plugins.tells()
    asked = [tells for name, tells in known.items() if tells is not None and framework in (None, name)]
    built = [call for call in program.calls if not call.parsed and _is_configuration(call, asked)]
    trainers = [call for call in program.calls if any("rainer" in name for name in _names_of(call))]
    training, idle = _by_training(program, [call for call in trainers if any(map(_is_trainer, _names_of(call)))])
    trained = {id(found) for call in trainers for found in _handed(call)}
    if idle and not training:
        return []
    evaluated = {id(found) for call in idle for found in _handed(call)}
    evaluated -= {id(found) for call in trainers if call not in idle for found in _handed(call)}
    built = [call for call in built if id(call) in trained] or built
    built = [call for call in built if id(call) not in evaluated]
    found: list[Source] = []
    for call in built:
        source = replace(_source(call, program, path), trainers=_trainers(program, call))
        if all(source.values != other.values or source.lines != other.lines for other in found):
            found.append(source)
    return found


def _is_configuration(call: Call, asked: Iterable[DetectionFacts]) -> bool:
    """Whether a call builds a framework's configuration. A class of the program's own may have the name alone: it
    counts by an ancestor that is a framework's, and a copy of a framework's class by one that is transformers'."""
    names = _names_of(call)
    if call.made_of is not None:
        read = [base for base in call.bases if "." in base]
        names = names if any(base.startswith("transformers.") for base in read) else tuple(read)
    return any(tells.constructs(names) for tells in asked)


def _trainers(program: Program, handed: Call | None = None) -> tuple[BuiltTrainer, ...]:
    """The trainers that a program builds; of those that are handed the object of a call, these alone."""
    calls = [call for call in program.calls if any(map(_is_trainer, _names_of(call)))]
    mine = [call for call in calls if handed is not None and any(one is handed for one in _handed(call))]
    replaced = bool(calls) and any(map(_replaces_a_constructor, program.trees.values()))
    return tuple(_built(one, program, replaced) for one in mine or calls)


def _by_training(program: Program, trainers: Iterable[Call]) -> tuple[list[Call], list[Call]]:
    """The trainers that a program may train with, and those of which it asks something, and nothing that trains. One
    that it builds and leaves alone may stand in an excerpt."""
    training: list[Call] = []
    idle: list[Call] = []
    for call in trainers:
        asked = program.uses(call)
        own = call.made_of is not None and "train" in call.made_of.asked_of_itself
        never = asked is not None and len(asked) > 0 and asked <= _WITHOUT_TRAINING and not own
        (idle if never else training).append(call)
    return training, idle


def idle_trainers(program: Program) -> list[Call]:
    """The trainers of a program that trains with none of them; none where it may train."""
    training, idle = _by_training(program, (one for one in program.calls if any(map(_is_trainer, _names_of(one)))))
    return [] if training else idle


def _names_of(call: Call) -> tuple[str, ...]:
    return (call.name, *call.bases)


def _built(call: Call, program: Program, replaced: bool) -> BuiltTrainer:
    over = frozenset[str]() if call.made_of is None else call.made_of.repeated_over
    where = Where(file=call.place.label, line=call.place.line)
    return BuiltTrainer(call.name, where, call.bases, call.methods, over, _given(call, program, replaced))


def _given(call: Call, program: Program, replaced: bool) -> GivenArguments:
    places = {key: call.places.get(key, call.place) for key in call.named}
    changed = call.made_of is not None and call.made_of.changed
    return GivenArguments(
        named={key: Where(key, None, one.label, one.line) for key, one in places.items()},
        positional=0 if call.node is None else len(call.node.args),
        open=call.unpacked,
        changed=changed or replaced,
        only_if=tuple(one.expression for one in call.only_if),
        caught=call.caught,
        modules=frozenset(name.partition(".")[0] for name in program.imported),
        imported_first=_imported_before(program, call),
    )


@lru_cache(maxsize=64)
def _replaces_a_constructor(tree: ast.Module) -> bool:
    """Whether a program sets `__init__` or `__new__` of a class."""
    nodes = (one for one in ast.walk(tree) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return any(one.attr in ("__init__", "__new__") for one in nodes)


def _is_trainer(name: str) -> bool:
    return re.search(r"Trainer(_\w+)?$", name) is not None


def started(
    file: Path,
    words: Sequence[tuple[str, tuple[str, ...]]],
    framework: str | None,
    launcher: Mapping[str, str],
    env: Mapping[str, str],
) -> StartedProgram:
    """The Python program that a command starts. words: what stands behind it, each with the names that it depends on
    where it is not known whole. env: its environment variables, as far as they are known."""
    nothing = StartedProgram([], None)
    if (text := text_of(file)) is None:
        return nothing
    behind = [OPEN + ", ".join(names) if names else word for word, names in words]
    try:
        program = _read(text, file, env, behind)
    except NotPython:
        return nothing
    sources = [replace(one, launcher=dict(launcher)) for one in runs_of(program, file, framework)]
    return StartedProgram(sources, _trainers(program), program.declared, not idle_trainers(program))


def trainers_of(file: Path) -> tuple[BuiltTrainer, ...] | None:
    """The trainers that a program builds, whatever stands behind it; None where it cannot be read."""
    if (text := text_of(file)) is None:
        return None
    try:
        return _trainers(_read(text, file, {}, None))
    except NotPython:
        return None


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def python_text(path: Path) -> str:
    """The Python text of a program, or of a notebook's cells. Raises `OSError` and `ValueError`."""
    text = path.read_text(encoding="utf-8")
    return code_of_notebook(text).text if path.suffix == ".ipynb" else text


def _handed(call: Call) -> Iterable[Call]:
    """The calls whose objects are arguments of a call."""
    for value in (*call.arguments.values(), *call.positional):
        if isinstance(value, Instance):
            yield value.call


def _read(text: str, path: Path, env: Mapping[str, str] | None, words: Sequence[str] | None) -> Program:
    """A program. A script is judged once for each release and number of devices, and its program is read once for all
    of them, until a file of the program changes."""
    asked = str(path), text, tuple(sorted((env or {}).items())), env is None, None if words is None else tuple(words)
    known = _PROGRAMS.get(asked)
    if known is not None and known[1:] == _as_now(path, *known[2:]):
        return known[0]

    def find_module(name: str, beside: str) -> tuple[str, str] | None:
        return module_of(name, Path(beside))

    loaded: list[str] = []

    def load_file(named: str) -> Any:
        loaded.append(named)
        return settings_of(named, path)

    program = read_python(text, str(path), env=env, words=words, find_module=find_module, load_file=load_file)
    if len(_PROGRAMS) >= MOST_PROGRAMS:
        _PROGRAMS.clear()
    _PROGRAMS[asked] = program, *_as_now(path, tuple(program.trees), tuple(loaded))
    return program


def _as_now(path: Path, modules: tuple[str, ...], loaded: tuple[str, ...]) -> tuple[Any, ...]:
    """The time at which each module of a program, and each file of settings that it opens, was last written, and its
    length."""
    opened = [near_file(named, path) for named in loaded]
    stamps = [_stamp(Path(one)) for one in modules], [(one, one and _stamp(one)) for one in opened]
    return stamps, modules, loaded


_PROGRAMS: dict[tuple[Any, ...], tuple[Program, Any, tuple[str, ...], tuple[str, ...]]] = {}
"""A program as it was read, with `_as_now` of then; by how it was asked for."""


def _source(call: Call, program: Program, path: Path) -> Source:
    """The source of one call. What it leaves open stands in `unknown`."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    files: dict[str, str] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    for key, value in call.arguments.items():
        place = call.places.get(key, call.place)
        lines[key] = place.line
        if place.label != str(path):
            files[key] = place.label
        if (open_value := unknown_in(value)) is not None:
            values[key], unknown[key] = open_value.expression, open_value.names
        else:
            values[key] = value
    construction = Construction(
        name=call.name,
        bases=call.bases,
        place=Where(file=call.place.label, line=call.place.line),
        modules=_imported_before(program, call),
        pins=program.pins,
        ranges=program.ranges,
        fields=call.fields,
        files=files,
        filtered=program.filters,
    )
    problems = (*_repeated(call), *_loose(call), *_conditional(call), *_assumed(program, path))
    return Source(
        values=values,
        lines=lines,
        path=path,
        unknown=unknown,
        construction=construction,
        loose=tuple(one.expression for one in call.loose),
        problems=tuple(problems),
    )


def _imported_before(program: Program, call: Call) -> dict[str, str]:
    """The packages that a program imports before it has the class of a call, see `Construction.modules`."""
    taken = [program.names[name] for name in _names_of(call) if name in program.names]
    found: dict[str, str] = {}
    for name, one in program.imported.items():
        package = name.partition(".")[0]
        if not taken or one.order < max(taken):
            found[package] = one.only_if and found.get(package, one.only_if)
    return found


# ---- what is to be said


def _where(source: Source) -> Where:
    assert source.construction is not None
    return source.construction.place


def _several(found: Sequence[Source]) -> Finding:
    """Configurations of one program are runs of their own, one after the other."""
    keys = {key for one in found for key in one.values}
    first = found[0].values
    differ = sorted(key for key in keys if any(one.values.get(key) != first.get(key) for one in found))
    told = f", which differ in {', '.join(differ[:6])}{' and others' if differ[6:] else ''}" if differ else ""
    message = f"the program builds {len(found)} configurations{told}; configuration 1 is read"
    where = tuple(dict.fromkeys(map(_where, found)))
    return Finding("BB012", "warning", "config", message, where, (Fix("name another with --command NUMBER"),))


def _at(place: Place) -> tuple[Where, ...]:
    return (Where(file=place.label, line=place.line),)


def _ways(unknown: UnknownValue) -> tuple[Fix, ...]:
    """--env answers what is an environment variable: a name in capitals."""
    variables = [name for name in unknown.names if name.isidentifier() and name.isupper()]
    return tuple(Fix(f"give it: --env {name}=VALUE") for name in variables)


def _repeated(call: Call) -> Iterable[Finding]:
    for name in dict.fromkeys(name for name in call.named if call.named.count(name) > 1):
        place = call.places.get(name, call.place)
        message, native = f"{name} is given twice in one call", f"SyntaxError: keyword argument repeated: {name}"
        where, ways = (Where(name, None, place.label, place.line),), (Fix(f"leave one {name} out"),)
        yield Finding("BB008", "error", "config", message, where, ways, native=native)


def _loose(call: Call) -> Iterable[Finding]:
    for unknown in call.loose:
        message = f"{unknown.expression} may hold settings: {', '.join(unknown.names)} is not known"
        fixes = _ways(unknown) or (Fix("name the settings with --set KEY=VALUE"),)
        yield Finding("BB011", "error", "config", message, _at(call.place), fixes, undecided=True)


def _conditional(call: Call) -> Iterable[Finding]:
    if call.only_if:
        names = ", ".join(dict.fromkeys(unknown.expression for unknown in call.only_if))
        message = f"whether this configuration is built depends on what only running the program would tell: {names}"
        yield Finding("BB013", "note", "config", message, _at(call.place))


def _assumed(program: Program, path: Path) -> Iterable[Finding]:
    for question in program.assumed:
        message = f"{question} is read as True: it asks the machine, and this one does not train"
        fix = Fix("--set KEY=VALUE reads a setting otherwise")
        yield Finding("BB019", "note", "config", message, (Where(file=str(path)),), (fix,))


def _unread_cells(program: Program, file: str) -> Finding:
    cells = ", ".join(map(str, program.unread))
    message = f"no Python, and not read: cell{'s' * (len(program.unread) > 1)} {cells}"
    return Finding("BB014", "note", "config", message, (Where(file=file),))


def _composed_of_overrides(function: str, file: str) -> Finding:
    """The finding that a program's settings stand behind it, as overrides of what Hydra composes."""
    message = f"the program hands {function} what hydra.main composes, and the overrides on its command line"
    fix = Fix("give these: batchbridge check FILE -- KEY=VALUE ..., or check the script that starts it")
    return Finding("BB010", "error", "config", message, (Where(file=file),), (fix,), undecided=True)


def _idle(trainers: Sequence[Call]) -> Finding:
    """The finding that a program trains with none of the trainers that it builds."""
    names = dict.fromkeys(call.name.rpartition(".")[2] for call in trainers)
    message = f"the program builds {', '.join(f'a {name}' for name in names)} and does not train"
    places = tuple(dict.fromkeys(Where(file=call.place.label, line=call.place.line) for call in trainers))
    return Finding("BB010", "error", "config", message, places, undecided=True)


def _nothing(program: Program, file: str, framework: str | None, *, looks: bool) -> Finding:
    """The finding that a program builds no configuration that is read, with what it builds instead. looks: whether it
    looks like training all the same."""
    code = LOOKS_LIKE_TRAINING if looks else "BB010"
    trainers = dict.fromkeys(call.name.rpartition(".")[2] for call in program.calls if call.name.endswith("Trainer"))
    parsed = [call for call in program.calls if call.parsed and call.name.endswith("Config")]
    who = f"of {framework}" if framework else "of a known framework"
    message = f"the program builds no configuration {who}"
    fixes: tuple[Fix, ...] = ()
    if parsed:
        code = "BB010"
        names = ", ".join(dict.fromkeys(call.name.rpartition(".")[2] for call in parsed))
        message = f"the program takes its settings ({names}) from its command line or a recipe"
        fixes = (
            Fix(
                "give what stands behind it: batchbridge check FILE -- --config RECIPE ..., or check the recipe itself"
            ),
        )
    elif not program.whole:
        message = "the program is too large to be read to its end, and no configuration was met before"
        message += f"; it trains with {', '.join(trainers)}" if trainers else ""
    elif trainers:
        message += f"; it trains with {', '.join(trainers)}"
    elif looks:
        message = "the program trains by rewards in a loop or with a trainer of its own"
    return Finding(code, "error", "config", message, (Where(file=file),), fixes, undecided=True)
