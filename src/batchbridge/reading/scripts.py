"""The way from a launch script to the `Source` of the training command in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bashread import Argument, Command, ScriptCommands, Unknown, read_script
from batchbridge.contract.reading import BuiltTrainer, Source, Unreached
from batchbridge.meaning.findings import LOOKS_LIKE_TRAINING, Finding, Fix, Severity, Where
from batchbridge.reading.arguments import near_file
from batchbridge.reading.detect import DETECTED, certainties
from batchbridge.reading.launchers import (
    LaunchedProgram,
    StartedProgram,
    Stop,
    launched_world_size,
    launcher_of,
    programs,
)
from batchbridge.reading.machine_facts import DEVICES, NODES, machine_settings, variables_of, visible_devices
from batchbridge.reading.unknown_settings import PLACEHOLDER, in_words, names_of, ways_to_give

if TYPE_CHECKING:
    from batchbridge.reading.unreached import UnreachedTraining

CERTAIN = 0.96
"""The confidence of an adapter that knows the program itself, not only names of settings."""
_OF_PYTHON = re.compile(r"\bactivate\b|/conda\.sh\b")
"""The pattern of what only chooses a Python: no batch depends on it."""
_SHELLS = ("bash", "sh", "source", ".")


class Candidate(NamedTuple):
    """A command of the script as a `Source`, and how sure the surest adapter is that it is its own."""

    command: Command
    program: LaunchedProgram
    source: Source
    sure: float

    @property
    def line(self) -> int:
        """The line of the program itself."""
        return self.program.words[0].line


def load_script(
    text: str, path: Path, *, env: Mapping[str, str] | None, framework: str | None, chosen: int | None
) -> Source:
    """The `Source` of the training command in the script `text`.

    env: values for what the script does not decide. framework: whose command is meant; None: anybody's. chosen: which
    of several, counted from 1. Whatever keeps the command from being read is a problem of the source.
    """
    given = {"PWD": ".", **variables_of(text, env or {})}  # it is started where the check is
    file = str(path)
    problems: list[Finding] = []
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        problems.append(_windows_lines(file))
    own = None if file == "-" else file

    def sourced(named: str) -> str | None:
        from batchbridge.reading.beside_scripts import text_beside

        return text_beside(named, near_file(named, path), path)

    def read_with(text: str, given: Mapping[str, str]) -> ScriptCommands:
        return read_script(text, given, own, sourced)

    script = read_with(text, given)
    found = _candidates(script, path, framework, given)
    if choices := {name: one for one in script.choices for name in one.names}:
        given |= {name: one.one_of[-1] for name, one in choices.items()}
        script = read_with(text, given)
        found = _candidates(script, path, framework, given)
        for name, one in choices.items():
            others = (read_with(text, {**given, name: other}) for other in one.one_of[:-1])
            if any(_words(_candidates(other, path, framework, given)) != _words(found) for other in others):
                problems.append(_taken(name, one, file))
    if not found and (task := re.search(_TASK, text)) and task[0] not in given:
        for number in ("0", "1"):  # one of srun's tasks starts the training, and its number is not the script's own
            asked = rf"\$\{{{task[0]}(:?-[^}}]*)?\}}|\${task[0]}\b"  # also in the text that a task's own shell is given
            other = read_with(re.sub(asked, number, text), given)
            if found := _candidates(other, path, framework, given):
                script = other
                problems.append(_task(task[0], number, file, found[0].line))
                break
    problems += _remarks(script, file, text)
    if not found:
        from batchbridge.reading.unreached import unreached

        def recognised(read: ScriptCommands) -> list[int]:
            return [one.line for one in _candidates(read, path, framework, given)]

        problems.append(_nothing(script, file, framework, unreached(text, script, recognised)))
        return Source(path=path, problems=tuple(problems), env=dict(env or {}))
    place = chosen or 1
    if place > len(found):
        problems.append(_missing(place, found, file))
        return Source(path=path, problems=tuple(problems), env=dict(env or {}))
    candidate = found[place - 1]
    if chosen is None and len(found) > 1:
        problems.append(_several(found, file))
    elif candidate.command.only_if and chosen is None:
        problems.append(_conditional(candidate, file))
    problems += [*_loose(candidate.program, file), *candidate.source.problems]
    loose = _loose_words(candidate.program)
    return replace(candidate.source, problems=tuple(problems), loose=loose, env=dict(env or {}))


def load_started(
    commands: Sequence[tuple[Sequence[str | tuple[str, ...]], int]],
    path: Path,
    *,
    env: Mapping[str, str] | None,
    framework: str | None,
    chosen: int | None,
) -> Source | None:
    """The `Source` of the training command that a Python program starts as a process; None where it starts none.

    commands: words of each, of what is not known the names that it depends on, and its line.
    """
    read = tuple(Command(tuple(_word(word, line) for word in words), line) for words, line in commands)
    found = _candidates(ScriptCommands(read), path, framework, dict(env or {}))
    if not found or (chosen or 1) > len(found):
        return None
    candidate, file = found[(chosen or 1) - 1], str(path)
    problems = [_several(found, file)] if chosen is None and len(found) > 1 else []
    problems += [*_loose(candidate.program, file), *candidate.source.problems]
    loose = _loose_words(candidate.program)
    return replace(candidate.source, problems=tuple(problems), loose=loose, env=dict(env or {}))


def _word(word: str | tuple[str, ...], line: int) -> Argument:
    if isinstance(word, str):
        return Argument(word, line)
    return Argument(word[0], line, (Unknown(word[0], line, word),))


def load_arguments(argv: Sequence[str]) -> Source:
    """The `Source` of a command given as words: of what its launchers (`ray job submit`, `accelerate launch`) start.

    Where that is several programs, the one that an adapter is surest of; where none is, the words as they are.
    """
    from batchbridge.reading.arguments import parse_arguments

    plain = Source(values=parse_arguments(list(argv)), argv=tuple(argv))
    found = programs([Argument(word, 1) for word in argv])
    trainers: dict[tuple[str, ...], tuple[BuiltTrainer, ...] | None] = {}
    declared: dict[tuple[str, ...], frozenset[str]] = {}
    for program in found:
        followed = _followed(program, None, None, in_words=True)
        if followed.sources:
            return followed.sources[0]
        trainers[program.argv], declared[program.argv] = followed.trainers, followed.declared
    if [(program.argv, program.stop) for program in found] == [(plain.argv, None)]:
        return replace(plain, trainers=trainers[plain.argv], declared=declared[plain.argv])
    inner = [
        Source(
            values=parse_arguments(program.argv),
            argv=program.argv,
            launcher=dict(program.launcher),
            unreached=_unreached(program, in_words=True),
            trainers=trainers[program.argv],
            declared=declared[program.argv],
        )
        for program in found
        if len(program.argv) > 1
    ]
    best = max(inner, key=_surest, default=plain)
    return best if _surest(best) > 0 else plain


def _candidates(script: ScriptCommands, path: Path, framework: str | None, env: Mapping[str, str]) -> list[Candidate]:
    """The training commands in the order in which they would run, each once. env: see `variables_of`."""
    from batchbridge.contract import plugins

    named = framework is not None and framework in plugins.adapters()
    asked = (framework,) if framework is not None and named else None
    all_of_them, seen = [], set()
    for command in script.commands:
        replaced = None if command.argv[:3] == _BY_HOOK else command.python_path
        for found in programs(command.words, command.document, command.assigned, env):
            launcher = {**launcher_of(found.argv, command.assigned), **found.launcher}
            launcher |= visible_devices(found.argv, command.assigned, env or {})
            program = _answered(replace(found, launcher=launcher) if launcher else found, env)
            if program.stop is None and replaced is not None:
                program = replace(program, stop=_replaced(replaced))
            if len(program.words) < 2 or (program.argv, program.words[0].line) in seen:
                continue
            if "=" in program.argv[0] or program.argv[0].rpartition("/")[2] in _SHELLS:
                continue  # a stray argument, as BB016 says, or another script, which is not opened
            seen.add((program.argv, program.words[0].line))
            followed = _followed(program, path, framework, env=command.assigned)
            if followed.sources:
                all_of_them += [Candidate(command, program, source, CERTAIN) for source in followed.sources]
                continue
            if not followed.trains:
                continue  # it evaluates
            # A word that is nothing but an unknown value is not a setting; `_loose` says what is open about it.
            source = _source(LaunchedProgram(tuple(_sure(program)), program.launcher, program.stop), path)
            open_flags = {**source.unknown, **_flags_before(program)}
            source = replace(source, trainers=followed.trainers, declared=followed.declared, unknown=open_flags)
            all_of_them.append(Candidate(command, program, source, _surest(source, asked)))
    # Where some are known by their program, those that only have settings of similar names are something else.
    bar = CERTAIN if any(one.sure >= CERTAIN for one in all_of_them) else DETECTED
    recognised = [one for one in all_of_them if one.sure >= bar]
    if not recognised and named:
        recognised = [one for one in all_of_them if one.sure > 0 and not one.program.words[0].unknown]
    return recognised


def _followed(
    program: LaunchedProgram,
    path: Path | None,
    framework: str | None,
    *,
    in_words: bool = False,
    env: Mapping[str, str] | None = None,
) -> StartedProgram:
    """A command's own Python program, and what it builds. in_words: the command was given in words. env: the variables
    that stand before it, or are exported."""
    words = program.words
    if words[0].text.rpartition("/")[2] in _ABOUT_FILES:
        return StartedProgram([], None)
    place = next((place for place, word in enumerate(words[:4]) if word.text.endswith(".py")), None)
    if place is None:
        place = next(
            (place + 1 for place, word in enumerate(words[:3]) if word.text == "-m" and not word.unknown), None
        )
    if place is None or place >= len(words) or words[place].unknown:
        return StartedProgram([], None)
    named = words[place].text
    file = near_file(named if named.endswith(".py") else f"{named.replace('.', '/')}.py", path)
    if file is None:
        return StartedProgram([], None)
    from batchbridge.reading.python import started

    behind = [(word.text, names_of(word.unknown)) for word in words[place + 1 :]]
    processes = launched_world_size(program.launcher)
    known = {**({} if processes is None else {"WORLD_SIZE": str(processes)}), **(env or {})}
    found = started(file, behind, framework, program.launcher, known)
    sources = [replace(one, unreached=_unreached(program, in_words=in_words)) for one in found.sources]
    return found._replace(sources=sources)


_ABOUT_FILES = frozenset(
    {
        *("[", "awk", "black", "cat", "chmod", "code", "cp", "diff", "du", "egrep", "file", "find", "flake8", "git"),
        *("grep", "head", "isort", "ln", "ls", "md5sum", "mv", "mypy", "nano", "pylint", "pytest", "rg", "rm", "rsync"),
        *("ruff", "scp", "sed", "sha256sum", "sort", "stat", "tail", "tar", "tee", "test", "touch", "vim", "wc", "zip"),
    }
)
"""Programs that look at a file whose name they get, and do not run it."""
_BY_HOOK = ("ray", "job", "submit")
"""A command that is reached by a variable that names a function of ours, and not by PYTHONPATH."""


def _replaced(path: Argument) -> Stop:
    """The stop of a script that gives Python another path than it had."""
    reason = f"line {path.line} sets PYTHONPATH, and leaves out what it was"
    return Stop("a script with this line", reason, f"PYTHONPATH={path.text}:$PYTHONPATH")


def _unreached(program: LaunchedProgram, *, in_words: bool) -> Unreached | None:
    """The launcher that keeps `batchbridge run` from a program. in_words: `run` can put variables into the command's
    words, which nobody can into those of a script."""
    stop = program.stop
    return None if stop is None or (in_words and stop.place is not None) else stop.unreached


def _surest(source: Source, frameworks: tuple[str, ...] | None = None) -> float:
    """The certainty of the surest framework; a broken plugin is reported by the reading that follows."""
    return max(certainties(source, [], frameworks).values(), default=0.0)


def _answered(program: LaunchedProgram, env: Mapping[str, str]) -> LaunchedProgram:
    """A program in which what was said of the machine stands for settings that ask for just that, and are unknown."""
    from batchbridge.reading.arguments import argument_keys

    if NODES not in env and DEVICES not in env:
        return program
    roles = machine_settings()
    words = list(program.words)
    for key, text, place in argument_keys(program.argv):
        said = env.get(roles.get(key.lstrip("+~"), ""))
        if text is not None and said is not None and words[place].unknown:
            whole = words[place].text
            words[place] = words[place]._replace(text=f"{whole.removesuffix(text)}{said}", unknown=())
    return replace(program, words=tuple(words))


def _source(program: LaunchedProgram, path: Path) -> Source:
    from batchbridge.reading.arguments import argument_keys, parse_arguments

    lines: dict[str, int] = {}
    unknown: dict[str, tuple[str, ...]] = {}
    for key, _, index in argument_keys(program.argv):
        word = program.words[index]
        lines[key] = word.line
        if names := (*names_of(word.unknown), *PLACEHOLDER.findall(word.text)):
            unknown[key] = names
        else:
            unknown.pop(key, None)
    launcher, values = dict(program.launcher), parse_arguments(program.argv)
    return Source(
        values=values,
        lines=lines,
        path=path,
        argv=program.argv,
        launcher=launcher,
        unknown=unknown,
        unreached=_unreached(program, in_words=False),
    )


# ---- what is to be said


def _remarks(script: ScriptCommands, file: str, text: str) -> Iterable[Finding]:
    lines = text.splitlines()
    for remark in script.remarks:
        where = (Where(file=file, line=remark.line),)
        here = lines[remark.line - 1] if 0 < remark.line <= len(lines) else ""
        if remark.kind == "not_read" and (placeholder := PLACEHOLDER.search(here)):
            said = f"the script still has a placeholder, {placeholder[0]}, and bash takes it for redirections"
            fix = Fix("write the value in its place")
            yield Finding("BB014", "error", "config", said, where, (fix,), undecided=True)
        elif remark.kind == "not_read":
            text = f"this part of the script is not read, and what it does is not seen: {remark.text}"
            yield Finding("BB014", "error", "config", text, where, undecided=True)
        elif remark.kind == "source" and not _OF_PYTHON.search(remark.text):
            text = f"{remark.text}: what it sets is not seen; give values that matter with --env NAME=VALUE"
            yield Finding("BB015", "warning", "config", text, where)
        elif remark.kind == "stray":
            fix = Fix("end the line before it with a backslash, without anything after it, and without a comment")
            native = "bash: command not found; the program runs without this argument and those after it"
            yield Finding("BB016", "warning", "config", remark.text, where, (fix,), native)


def _windows_lines(file: str) -> Finding:
    """The finding that bash takes each CR for a character of the line's last word: no continuation holds."""
    message = "the lines end as on Windows (CR LF), which ends every continuation; read as if they ended in LF alone"
    fix = Fix(f"sed -i 's/\\r$//' {file}")
    return Finding(
        "BB016", "warning", "config", message, (Where(file=file, line=1),), (fix,), "bash: $'\\r': command not found"
    )


def _words(found: Iterable[Candidate]) -> list[tuple[str, ...]]:
    return [(*one.program.argv, *map(str, one.program.launcher.items())) for one in found]


_TASK = r"SLURM_(PROCID|NODEID|LOCALID)"
"""The variables by which srun numbers its tasks; a script that reads them has no values for them itself."""


def _task(name: str, number: str, file: str, line: int) -> Finding:
    message = f"{name} is each task's own number; read as the task {number}, which trains"
    return Finding("BB019", "note", "config", message, (Where(file=file, line=line),))


def _taken(name: str, choice: Unknown, file: str) -> Finding:
    """The finding for a choice of the machine's: read as where its program fails, like a variable that nothing sets."""
    of = " or ".join(choice.one_of)
    message = f"{name} is {of}, which only the machine that runs the script tells; read as {choice.one_of[-1]}"
    fixes = tuple(Fix(f"--env {name}={other} reads the other") for other in choice.one_of[:-1])
    return Finding("BB019", "note", "config", message, (Where(file=file, line=choice.line),), fixes)


def _nothing(script: ScriptCommands, file: str, framework: str | None, kept: UnreachedTraining) -> Finding:
    who = f"of {framework}" if framework else "of a known framework"
    message = f"the script runs no training command {who}"
    places: tuple[Where, ...] = (Where(file=file),)
    if script.commands:
        last = max(script.commands, key=lambda command: len(command.words))
        message += f"; its longest command is {' '.join(last.argv)[:80]}"
        places = (Where(file=file, line=last.line),)
    if kept.line is not None:
        message, places = f"the script runs no training command {who}", (Where(file=file, line=kept.line),)
    message += kept.said
    code = "BB010" if kept.line is None else LOOKS_LIKE_TRAINING
    from batchbridge.reading.looks import program_trains, starts_training

    runs = (one for one in script.commands if one.argv[0].rpartition("/")[2] not in _ABOUT_FILES)
    like_training = (one for one in runs if starts_training(one.argv) or program_trains(one.argv, file))
    looks = next((one for one in like_training if _may_train(one, Path(file))), None)
    if looks is not None and kept.line is None:
        code, places = LOOKS_LIKE_TRAINING, (Where(file=file, line=looks.line),)
        message = f"{' '.join(looks.argv)[:80]} looks like training, and is not a program {who}"
    fix = Fix("arguments of the script stand behind --, environment variables are given as --env NAME=VALUE")
    named = framework or not script.commands or kept.line is not None
    own = () if named else (Fix("--framework NAME if the command is a custom one"),)
    answers = " ".join(f"--env {name}=VALUE" for name in kept.names)
    asked = (Fix(f"give it: {answers}"),) if answers else (*own, fix)
    return Finding(code, "error", "config", message, places, asked, undecided=True)


def _may_train(command: Command, path: Path) -> bool:
    """Whether a command's program is not one that builds trainers and trains with none."""
    return all(_followed(program, path, None).trains for program in programs(command.words, command.document))


def _several(found: list[Candidate], file: str) -> Finding:
    """Commands that all run are each a run of their own; of those in undecided branches only some do."""
    listed, open_ones = ", ".join(_listed(found)), [one for one in found if one.command.only_if]
    message = f"the script runs {len(found)} training commands ({listed}); command 1 is read"
    if open_ones:
        names = names_of(unknown for one in open_ones for unknown in one.command.only_if)
        why = in_words(names[:4]) + (f" and {len(names) - 4} more" if names[4:] else "")
        message = f"the script has {len(found)} training commands ({listed}), and {why} decides which run; 1 is read"
    where = tuple(dict.fromkeys(Where(file=file, line=one.line) for one in found))
    fix = Fix("name one with --command NUMBER")
    severity: Severity = "error" if open_ones else "warning"
    return Finding("BB012", severity, "config", message, where, (fix,), undecided=bool(open_ones))


def _listed(found: Sequence[Candidate]) -> Iterator[str]:
    """`1: line 36, 2 to 9: line 41`: the turns of a loop together."""
    for line, alike in groupby(enumerate(found, 1), lambda one: one[1].line):
        places = [str(place) for place, _ in alike]
        yield f"{' to '.join(dict.fromkeys((places[0], places[-1])))}: line {line}"


def _missing(place: int, found: list[Candidate], file: str) -> Finding:
    message = f"there is no training command {place} in the script; it has {len(found)}"
    return Finding("BB012", "error", "config", message, tuple(Where(file=file, line=one.line) for one in found))


def _conditional(candidate: Candidate, file: str) -> Finding:
    names = names_of(candidate.command.only_if)
    message = f"whether this command runs depends on {in_words(names)}"
    where = (Where(file=file, line=candidate.line),)
    fixes = (*ways_to_give(names), Fix("--command 1 takes it as given that it runs"))
    return Finding("BB013", "error", "config", message, where, fixes, undecided=True)


def _loose(program: LaunchedProgram, file: str) -> Iterable[Finding]:
    """Words that are nothing but an unknown value: they may hold any number of further settings, or none."""
    for word in (program.words[place] for place in _loose_places(program)):
        names = names_of(word.unknown)
        message = f"{word.text} may hold settings: {in_words(names)} is not known"
        fixes = ways_to_give(names) or (Fix("name the settings with --set KEY=VALUE"),)
        where = (Where(file=file, line=word.line),)
        yield Finding("BB011", "error", "config", message, where, fixes, undecided=True)


def _loose_words(program: LaunchedProgram) -> tuple[str, ...]:
    return tuple(dict.fromkeys(program.words[place].text for place in _loose_places(program)))


def _sure(program: LaunchedProgram) -> list[Argument]:
    """The words of the program without those that are nothing but an unknown value, and no setting's value; and without
    settings of an unknown value that are set again."""
    return [program.words[place] for place in sorted(_sure_places(program))]


def _flags_before(program: LaunchedProgram) -> dict[str, tuple[str, ...]]:
    """The options that stand before a word of unknown settings, which may begin with the option's value."""
    words = program.words
    flags = ((words[place - 1].text, words[place]) for place in _loose_places(program) if place)
    return {
        flag.lstrip("-"): names_of(word.unknown) for flag, word in flags if flag.startswith("--") and "=" not in flag
    }


def _loose_places(program: LaunchedProgram) -> list[int]:
    keys = _keys_by_place(program)
    words = enumerate(program.words)
    return [place for place, word in words if place and (place not in keys or word.many) and _whole(word)]


def _sure_places(program: LaunchedProgram) -> set[int]:
    keys, loose = _keys_by_place(program), {*_loose_places(program)}
    # Words that are a setting by themselves: the value of `--env` may look like one, and is another each time.
    own = {place: key for place, key in keys.items() if program.words[place].text.lstrip("-").startswith(f"{key}=")}
    last = {key: place for place, key in own.items()}
    return {
        place
        for place, word in enumerate(program.words)
        if place not in loose
        # What is not known, and said again behind it, does not count.
        and not (word.unknown and place in own and last[own[place]] > place)
    }


def _keys_by_place(program: LaunchedProgram) -> dict[int, str]:
    from batchbridge.reading.arguments import argument_keys

    return {place: key for key, _, place in argument_keys(program.argv)}


def _whole(word: Argument) -> bool:
    return bool(word.unknown) and word.text == "".join(one.shown for one in word.unknown)
