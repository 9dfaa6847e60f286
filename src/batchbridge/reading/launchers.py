"""The removal of programs that only start another one: `nohup`, `ray job submit ... --`, `accelerate launch`,
`torchrun`.

What such a launcher says about the number of processes is kept as `Source.launcher`. The table knows for each wrapper
which of its options take a value; an option with `=` is one word anyway.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from batchbridge.contract.reading import BuiltTrainer, Source, Unreached
from batchbridge.frozen import dataclass
from batchbridge.reading.launcher_table import IN_CONTAINER, UV, WRAPPERS, LauncherWords, LaunchWrapper

if TYPE_CHECKING:
    from bashread import Argument


class Stop(NamedTuple):
    """A launcher behind which the environment of whoever starts the command does not arrive.

    launcher: its name. reason: why. instead: what to write, so that `batchbridge run` stands behind it. place: how many
    words of the command stand before the program, where variables can be given to it as words; None: they cannot.
    assigned: PYTHONPATH as the program would have it, where the words before it say so.
    """

    launcher: str
    reason: str
    instead: str
    place: int | None = None
    assigned: str = ""

    @property
    def unreached(self) -> Unreached:
        """The part of it that a reading says."""
        return Unreached(self.launcher, self.reason, self.instead)


@dataclass(frozen=True)
class LaunchedProgram:
    """A program with its arguments, what its launchers said (see `Source.launcher`), and the one that stops the
    environment."""

    words: tuple[Argument, ...]
    launcher: Mapping[str, str] = field(default_factory=dict)
    stop: Stop | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The words' text."""
        return tuple(word.text for word in self.words)


OF_ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    # ms-swift 1d1bb2f swift/cli/main.py: starts torchrun itself where these are set
    r"swift|swift[./]cli[./](main|rlhf|sft)(\.py)?": {"NPROC_PER_NODE": "nproc_per_node", "NNODES": "nnodes"},
}
"""A pattern of programs that start their processes themselves, to the variables that say how many, and the name of what
they say in `Source.launcher`."""


class StartedProgram(NamedTuple):
    """The Python program of a command: the configurations that it builds itself, its trainers (None: it is not here, or
    no Python), and the options that its own parser and dataclasses take. trains: False where it certainly trains with
    none of its trainers."""

    sources: list[Source]
    trainers: tuple[BuiltTrainer, ...] | None
    declared: frozenset[str] = frozenset()
    trains: bool = True


def launcher_of(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The numbers of processes that a program's environment says, as a launcher's options would."""
    for pattern, names in OF_ENVIRONMENT.items():
        if any(re.fullmatch(pattern, word.rpartition("bin/")[2]) for word in words[:4]):
            said = {key: environment[name] for name, key in names.items() if name in environment}
            return {"launcher": words[0].rpartition("/")[2], **said} if said else {}
    return {}


_DEEPEST = 20


def programs(
    words: Sequence[Argument],
    document: Argument | None = None,
    exported: Mapping[str, str] | None = None,
    said: Mapping[str, str] | None = None,
) -> list[LaunchedProgram]:
    """The programs that the command `words` ends up running: one, or several where a job's text has `&&`. document:
    its input, which a shell runs that has no other text; exported: the variables that the script exports; said: those
    that hold wherever it runs."""
    way = _Way({}, tuple(words), document=document, exported=exported or {}, said=said or {})
    return list(_unwrapped(list(words), way))


class _Way(NamedTuple):
    """The facts that are known on the way to a program.

    launcher: as in `Source.launcher`. outer: the words of the command. place: how many of them are behind us; None: we
    are in a text, or in words that nobody wrote. depth: launchers so far. stop: the last launcher that stops the
    environment. firm: the variables cannot be given as words there, or could not before. document: the input.
    exported: the variables that arrive as far as nothing stops them. said: those that hold wherever it runs.
    """

    launcher: Mapping[str, str]
    outer: tuple[Argument, ...]
    depth: int = 0
    place: int | None = 0
    stop: Stop | None = None
    firm: bool = False
    document: Argument | None = None
    exported: Mapping[str, str] = MappingProxyType({})
    said: Mapping[str, str] = MappingProxyType({})

    @property
    def variables(self) -> dict[str, str]:
        """The variables that a shell on this way has."""
        return {**self.exported, **self.said}


def launched_world_size(launcher: Mapping[str, str]) -> int | None:
    """The processes that a launcher was told to start; None where it was not told, or not in whole numbers."""
    total = _count(launcher, "num_processes")
    for per_node, nodes in (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes")):
        if total is None and (local := _count(launcher, per_node)) is not None:
            count = _count(launcher, nodes) if nodes in launcher else 1
            total = None if count is None else local * count
    return total


def _count(launcher: Mapping[str, str], key: str) -> int | None:
    text = launcher.get(key, "")
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def _unwrapped(words: list[Argument], way: _Way) -> Iterator[LaunchedProgram]:
    environment: dict[str, str] = {}
    while words and _ASSIGNMENT.fullmatch(words[0].text):
        name, _, environment[name] = words[0].text.partition("=")
        words = words[1:]  # FOO=1 program, in a job's text
        way = way._replace(place=None if way.place is None else way.place + 1)
    wrapper = next((row for row in WRAPPERS if _starts(words, row)), None)
    if not words or way.depth > _DEEPEST:
        return
    within = way._replace(depth=way.depth + 1, place=None)
    if wrapper is not None:
        text, rest, way = _inside(words, wrapper, way)
        if wrapper.shell and not rest and text is None:  # ssh HOST <<EOF
            rest = [words[0]._replace(text="bash", unknown=())]
        for part in [rest] if text is None else _shell(text, words, way.variables):
            yield from _unwrapped(part, way)
    elif (job := _mason(words)) is not None:
        # Open-Instruct's mason.py: everything after -- is a shell line that runs on the cluster.
        ahead = words[: len(words) - len(job)]
        within = _stopped(within, "mason.py", "the cluster has its own variables", ahead, _run(job))
        for part in _parts(job):
            yield from _unwrapped(part, within)
    elif (inner := _inner(*_with_document(words, way.document), {**way.variables, **environment})) is not None:
        for part in inner:
            yield from _unwrapped(part, within)
    else:
        if (flag := _isolates(words)) is not None:
            kept = [word for place, word in enumerate(words) if place != flag]
            reason = f"`{words[0].text} {words[flag].text}` does not read PYTHONPATH, or starts without `sitecustomize`"
            before = () if way.place is None else way.outer[: way.place]
            way = _stopped(way, f"python {words[flag].text}", reason, before, _run(kept))
        said = launcher_of([word.text for word in words], environment)
        yield LaunchedProgram(tuple(words), {**said, **way.launcher}, way.stop)


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_RUN = "batchbridge run --"


def _starts(words: list[Argument], wrapper: LaunchWrapper) -> bool:
    texts = [word.text for word in words[: len(wrapper.words)]]
    return len(texts) == len(wrapper.words) and [texts[0].rpartition("/")[2], *texts[1:]] == list(wrapper.words)


def _stopped(way: _Way, launcher: str, reason: str, before: Sequence[Argument], instead: str) -> _Way:
    """The way behind a launcher that stops the environment, and takes no variables as words."""
    written = " ".join([*map(_spelt, before), instead])
    stop = Stop(launcher, reason, written)
    if way.firm and way.stop is not None:  # the first one that nothing can be done about is the one that is named
        stop = way.stop._replace(instead=written)
    return way._replace(stop=stop, firm=True, exported={})


def _run(words: Sequence[Argument]) -> str:
    """`batchbridge run` before a program, whose many arguments are left out."""
    shown = [_spelt(word) for word in words]
    return " ".join([_RUN, *(shown if len(shown) <= _MANY_WORDS else [*shown[:3], "..."])])


_MANY_WORDS = 6


def _spelt(word: Argument) -> str:
    """A word as a script has it; a variable in it stays one."""
    return word.text if re.fullmatch(r"[^\s'\"\\|&;<>()`]+", word.text) else shlex.quote(word.text)


def _isolates(words: Sequence[Argument]) -> int | None:
    """The place of the option that makes Python leave `sitecustomize` out: -I, -E, -S, alone or among letters."""
    if not re.fullmatch(r"python(\d(\.\d+)?)?|pypy3?", words[0].text.rpartition("/")[2]):
        return None
    for place, word in enumerate(words[1:], 1):
        if not re.fullmatch(r"-[A-Za-z]+", word.text) or word.text[1] in "cm":
            return None
        if set(word.text) & set("IES"):
            return place
    return None


def _inside(words: list[Argument], wrapper: LaunchWrapper, way: _Way) -> tuple[str | None, list[Argument], _Way]:
    """The text or the program inside a launcher, and the way behind it."""
    place, module, starts, facts = len(wrapper.words), False, wrapper.starts, dict(way.launcher)
    python = words[0]._replace(text="python", unknown=())
    options: dict[str, str] = {}
    text: str | None = None
    around: tuple[list[Argument], list[Argument]] | None = None  # of an option that has the text
    while place < len(words) and (words[place].text.startswith("-") or wrapper.options_anywhere):
        word = words[place].text
        place += 1
        if not word.startswith("-"):
            continue
        if word == "--":
            break
        dashed, equals, value = word.partition("=")
        name = dashed.lstrip("-").replace("-", "_")
        takes = _takes(dashed, name, wrapper)
        module = module or ((wrapper.starts or wrapper.words == UV) and name in ("m", "module"))
        starts = starts and name != "no_python"
        at = place - 1
        if not equals and name in wrapper.pairs:
            place += 2
        elif not equals and takes and place < len(words):
            value = words[place].text
            place += 1
        if name in wrapper.text:
            text, around = value, (words[:at], words[place:])
        if wrapper.bundles and not takes and not dashed.startswith("--"):
            options |= dict.fromkeys(name, "")
        options[name] = value
        if name in wrapper.keeps:
            facts[name] = value
    if wrapper.behind_dashes and (dashes := [at for at, word in enumerate(words) if word.text == "--"]):
        place = dashes[0] + 1
    place += wrapper.skipped
    assigned: dict[str, str] = {}
    while wrapper.takes_words and place < len(words) and _ASSIGNMENT.fullmatch(words[place].text):
        name, _, assigned[name] = words[place].text.partition("=")
        place += 1
    place = _shell_behind(words, place, place - wrapper.skipped)
    before, rest = words[:place], words[place:]
    if wrapper.shell and len(rest) == 1:
        text, around = rest[0].text, (before, [])
    if wrapper.starts:
        facts["launcher"] = " ".join(wrapper.words)
        starts = starts and bool(rest)
    elif wrapper.words == UV and rest and (module or rest[0].text.endswith(".py")):
        starts = True  # uv runs a script with its own Python
    behind = None if way.place is None else way.place + place
    way = way._replace(launcher=facts, depth=way.depth + 1, place=None if starts or text is not None else behind)
    reason = wrapper.stops(LauncherWords(options, assigned))
    as_words = wrapper.takes_words and reason != IN_CONTAINER  # `srun --container-image`: files of its own
    if reason is not None and as_words and behind is not None and not way.firm:
        launcher, instead = " ".join(wrapper.words), " ".join([*map(_spelt, before), _run(rest)])
        stop = Stop(launcher, reason, instead, behind, assigned.get("PYTHONPATH", ""))
        way = way._replace(stop=stop, exported=assigned)
    elif reason is not None:
        written = _instead(wrapper, before if behind is None else way.outer[:behind], rest, text, around)
        way = _stopped(way, " ".join(wrapper.words), reason, [], written)
    if starts:
        rest = [python, *([python._replace(text="-m")] if module else []), *rest]
    return text, rest, way


def _shell_behind(words: Sequence[Argument], place: int, first: int) -> int:
    """The place of the `bash -c` that a launcher starts, where a word before it, from `first` on, is not known: that
    may be any number of the options of the launcher."""
    if not any(word.unknown for word in words[first : place + 3]):
        return place
    for at in range(place + 1, min(place + 4, len(words) - 1)):
        if words[at].text.rpartition("/")[2] in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", words[at + 1].text):
            return at
    return place


def _takes(dashed: str, name: str, wrapper: LaunchWrapper) -> bool:
    """Whether an option's value is the next word."""
    if wrapper.bundles and wrapper.flags is not None and re.fullmatch(r"-[A-Za-z]{2,}", dashed):
        return not set(name) <= wrapper.flags and name[0] in wrapper.flags  # -it; -iv /a:/b; -eNAME
    if wrapper.flags is not None:
        return name not in wrapper.flags
    return name in {*wrapper.values, *wrapper.text}  # -n10 has its value, and mpirun's -np is one name


def _instead(
    wrapper: LaunchWrapper,
    before: Sequence[Argument],
    rest: Sequence[Argument],
    text: str | None,
    around: tuple[Sequence[Argument], Sequence[Argument]] | None,
) -> str:
    """The command as it should be written, or where `batchbridge run` stands in another one."""
    if text is not None and around is not None:
        ours = f"{_RUN} {text if re.fullmatch(_PLAIN, text) else f'bash -c {shlex.quote(text)}'}"
        quoted = shlex.quote(ours) if set(ours) & set('"$`\\') else f'"{ours}"'
        option = [f"--{wrapper.text[-1]}"] if wrapper.text else []
        return " ".join([*map(_spelt, around[0]), *option, quoted, *map(_spelt, around[1])])
    if wrapper.instead:
        return f"{wrapper.instead}: {_RUN} COMMAND"
    return " ".join([*map(_spelt, before), _run(rest)])


_PLAIN = r"[\w\s./:,@%+=-]+"


def _with_document(words: list[Argument], document: Argument | None) -> tuple[list[Argument], bool]:
    """The command of a shell that reads its text from its input, as if the text were among its words; and whether it
    is one."""
    shell = words[0].text.rpartition("/")[2] in ("bash", "sh")
    if document is None or not shell or not all(re.fullmatch(r"-[a-z]*|--login", word.text) for word in words[1:]):
        return words, False
    return [words[0], words[0]._replace(text="-c", unknown=()), document], True


def _shell(text: str, words: list[Argument], variables: Mapping[str, str]) -> list[list[Argument]]:
    """The commands of a shell's text that a launcher has among its `words`."""
    shell = words[0]._replace(text="bash", unknown=())
    given = [word for word in words if text in word.text][:1]
    whole = (given[0] if given else shell)._replace(text=text)
    return _inner([shell, shell._replace(text="-c"), whole], False, variables) or []


def _inner(words: list[Argument], written: bool, variables: Mapping[str, str]) -> list[list[Argument]] | None:
    """The commands of `bash -c TEXT`, `eval TEXT`. What is unknown is a variable while the text is read: as it is shown
    it may be cut, and open a quote. written: whether its lines are lines of the file."""
    texts = [words[0].text.rpartition("/")[2], *(word.text for word in words[1:])]
    if texts[0] == "eval" and len(texts) == 2:
        return _inner([words[0]._replace(text="bash"), words[0]._replace(text="-c"), words[1]], False, variables)
    if texts[0] not in ("bash", "sh"):
        return None
    from bashread import read_script

    outside, line = [one for word in words for one in word.unknown], max(word.line for word in words[:3])
    held = sorted(dict.fromkeys(one.shown for one in outside), key=len, reverse=True)

    def marked(text: str) -> str:
        for number, shown in enumerate(held):
            text = text.replace(shown, f"${{{_HELD}{number}}}")
        return text

    def told(word: Argument) -> Argument:
        numbers = [int(number) for number in _HELD_HERE.findall(word.text)]
        text = _HELD_HERE.sub(lambda found: held[int(found[1])], word.text)
        own = tuple(one for one in word.unknown if not any(name.startswith(_HELD) for name in one.names))
        again = tuple(one for one in outside if one.shown in {held[number] for number in numbers})
        place = line + word.line - 1 if written else line
        return word._replace(text=text, line=place, unknown=(*own, *dict.fromkeys(again)))

    commands = read_script(shlex.join(map(marked, texts)), variables).commands
    found = [[told(word) for word in command.words] for command in commands]
    if [[word.text for word in command] for command in found] == [texts]:
        return None  # a script, which is not opened
    return found


_HELD = "BATCHBRIDGE_HELD_"
"""The name of a variable that stands for an unknown while a launcher's text is read, before its number."""
_HELD_HERE = re.compile(rf"\$\{{?{_HELD}(\d+)\}}?")


def _mason(words: list[Argument]) -> list[Argument] | None:
    texts = [word.text for word in words]
    script = next((place for place, text in enumerate(texts[:3]) if text.rpartition("/")[2] == "mason.py"), None)
    if script is None or "--" not in texts[script:]:
        return None
    return words[texts.index("--", script) + 1 :]


def _parts(words: list[Argument]) -> Iterator[list[Argument]]:
    """The commands of a shell line that was given as words; an operator may touch a word (`&&python`, `setup.sh;`)."""
    part: list[Argument] = []
    for word in words:
        for piece in re.findall(r"&&|\|\||;$|\|$|^\||(?:(?!&&|\|\||;$|\|$).)+", word.text, re.DOTALL) or [""]:
            if piece in ("&&", "||", ";", "|", "--"):
                yield part
                part = []
            else:
                part.append(word._replace(text=piece))
    yield part
