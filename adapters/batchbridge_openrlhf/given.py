"""What the user gave: a launch command or a mapping, as option names with values and places.

A command is data. It may stand behind `ray job submit ... --`, `deepspeed --module`, `torchrun -m` or `python -m`;
whatever comes before the program is the launcher's. OpenRLHF itself has no configuration file: a YAML or JSON file of
options, dotted names nested or not, is BatchBridge's own convenience.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchbridge import Source, Where
from batchbridge_openrlhf.settings import Option
from batchbridge_openrlhf.values import WrongValue, convert, shown

PROGRAM = re.compile(r"(^|[./])train_ppo_ray(\.py)?$")
"""How a command names the trainer: a module or a file."""
OTHER_PROGRAM = re.compile(r"(^|[./])openrlhf[./]cli[./]\w+(\.py)?$")
"""OpenRLHF's other programs, which train by other rules."""
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
"""Words with a leading dash that argparse takes for values. Source: CPython 3.11 argparse, _negative_number_matcher.
Later Pythons may take exponents (-1e-3) too."""
_REPEATS = {"pair": 2, "texts": 2, "floats": None, "words": None}
"""Kind of an option to how many values it takes (None: as many as there are); the others take one."""
_SETTING = re.compile(r"[A-Za-z_][\w.]*=")
"""Settings without dashes (`train.batch_size=8`), as the command line's `--set` gives them; their values are YAML."""
_DEEPEST = 6
"""Levels of a nested mapping; the deepest dotted name has three."""


@dataclass(frozen=True)
class Refused:
    """An occurrence of an option that argparse refuses: in the user's spelling, and why."""

    name: str
    identity: str
    place: Where
    message: str
    native: str


@dataclass
class Given:
    """Names in the user's spelling to values and places.

    ambiguous: word to the options that it could be short for. broken: occurrences that argparse refuses, in order.
    strays: words that no option takes. other: another OpenRLHF program that the command starts. abbreviated: shortened
    name to the option it stands for. whole: a command from the program on, to which nothing is added.
    """

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Where] = field(default_factory=dict)
    ambiguous: dict[str, list[str]] = field(default_factory=dict)
    broken: list[Refused] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    abbreviated: dict[str, str] = field(default_factory=dict)
    other: str | None = None
    no_command: bool = False
    whole: bool = False


def given_of(source: Source, options: Mapping[str, Option]) -> Given:
    """What `source` gives to a parser with these `options`. Values that replace arguments (`--set`) come last."""
    if not source.argv or all(_SETTING.match(word) for word in source.argv):
        given = Given()
        _take(given, source, source.values)
        return given
    given = _arguments(source, options)
    from batchbridge.kit import parse_arguments

    told = parse_arguments(source.argv)
    _take(given, source, {key: value for key, value in source.values.items() if key not in told or told[key] != value})
    return given


def program_of(argv: Sequence[str]) -> int | None:
    """Index of the word that names the trainer."""
    return next((index for index, word in enumerate(argv) if PROGRAM.search(word)), None)


def other_program(argv: Sequence[str]) -> str | None:
    """The word that names another program of OpenRLHF."""
    return next((word for word in argv if OTHER_PROGRAM.search(word)), None)


def is_bare(argv: Sequence[str]) -> bool:
    """Whether these are options or settings alone, without a program before them."""
    return bool(argv) and (argv[0].startswith("--") or bool(_SETTING.match(argv[0])))


def names_in(source: Source) -> list[str]:
    """Option names in `source`, whatever the version."""
    if source.argv and not all(_SETTING.match(word) for word in source.argv):
        start = program_of(source.argv)
        words = source.argv[0 if start is None else start + 1 :]
        return [word[2:].partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
    return [name for name, _ in _leaves(source.values, {}, "", 0)]


def _arguments(source: Source, options: Mapping[str, Option]) -> Given:
    given, argv = Given(), source.argv
    file = None if source.path is None else str(source.path)
    start = program_of(argv)
    if start is None:
        given.other = other_program(argv)
        given.no_command = given.other is None and not is_bare(argv)
        if given.other or given.no_command:
            return given
    given.whole = start is not None
    words = deque(_classified(argv[0 if start is None else start + 1 :], options, given))
    while words:
        word = words.popleft()
        if word.option is None and not word.unknown:
            given.strays.append(word.text)
            continue
        written = word.text.lstrip("-").partition("=")[0]
        name, line = word.name or written, source.lines.get(written)
        place = Where(name, None, file if line else None, line)
        given.places.setdefault(name, place)
        if word.option is None:
            following = [word.attached] if word.attached is not None else _values(words, None)
            if word.text in given.ambiguous:
                continue  # argparse stops there
            given.values[name] = word.attached if word.attached is not None else " ".join(following) or True
            given.places[name] = Where(name, shown(given.values[name]), place.file, place.line)
            continue
        refused = _take_values(word, words, given)
        if refused is not None:
            message, native = refused
            given.broken.append(Refused(name, word.option.identity, place, message, native))
        else:
            given.places[name] = Where(name, shown(given.values[name]), place.file, place.line)
    return given


@dataclass(frozen=True)
class _Word:
    """A word as argparse sorts it: an option (`unknown`: one that it does not know) with the value `attached` to it by
    =, or a value."""

    text: str
    name: str = ""
    option: Option | None = None
    attached: str | None = None
    unknown: bool = False


def _classified(words: Sequence[str], options: Mapping[str, Option], given: Given) -> list[_Word]:
    """Source: CPython 3.11 argparse, ArgumentParser._parse_optional; after a lone -- everything is a value."""
    found: list[_Word] = []
    for index, word in enumerate(words):
        if word == "--":
            return [*found, *map(_Word, words[index:])]
        found.append(_option(word, options, given))
    return found


def _option(word: str, options: Mapping[str, Option], given: Given) -> _Word:
    if len(word) < 2 or not word.startswith("-"):
        return _Word(word)
    if word.startswith("--"):
        name, equals, text = word[2:].partition("=")
        attached = text if equals else None
        if name in options:
            return _Word(word, name, options[name], attached)
        longer = [known for known in (*options, "help") if known.startswith(name)]
        if len(longer) > 1:
            given.ambiguous[word] = longer
        elif longer and longer[0] != "help":
            given.abbreviated[name] = longer[0]
            return _Word(word, longer[0], options[longer[0]], attached)
        if longer:
            return _Word(word, attached=attached, unknown=True)
    if _NUMBER.match(word) or " " in word:
        return _Word(word)
    _, equals, text = word.partition("=")
    return _Word(word, attached=text if equals else None, unknown=True)


def _take_values(word: _Word, words: deque[_Word], given: Given) -> tuple[str, str] | None:
    """Takes the values of the option `word` off the front of `words`; what argparse has against them, and its words.

    A further occurrence replaces an earlier value, but argparse converts, and so refuses, each of them.
    """
    option, name = word.option, word.name
    assert option is not None
    native = f"argparse: error: argument --{name}"
    if option.kind in ("flag", "flag_off"):
        if word.attached is not None:
            return f"--{name} takes no value; given: {word.attached}", f"{native}: ignored explicit argument"
        given.values[name] = option.kind == "flag"
        return None
    count = _REPEATS.get(option.kind, 1)
    taken = [word.attached] if word.attached is not None else _values(words, count)
    if (count is not None and len(taken) != count) or (option.kind == "floats" and not taken):
        wanted = "a value" if count == 1 else "two values" if count == 2 else "values"
        return f"--{name} needs {wanted}; given: {' '.join(taken) or 'nothing'}", native
    value: Any = taken[0] if count == 1 else taken
    try:
        convert(option, value)
    except WrongValue as wrong:
        if wrong.phase == "config":
            return wrong_value(name, value, wrong), wrong.native
    given.values[name] = value
    return None


def wrong_value(name: str, value: object, wrong: WrongValue) -> str:
    """What a finding says about `value` of the option `name`."""
    return f"{name} = {shown(value)!r}: {wrong.expected} was expected"


def _values(words: deque[_Word], count: int | None) -> list[str]:
    """Takes the values of one option off the front of `words`: `count` of them (None: as many as there are)."""
    taken: list[str] = []
    while words and len(taken) != count and words[0].option is None and not words[0].unknown and words[0].text != "--":
        taken.append(words.popleft().text)
    return taken


def _take(given: Given, source: Source, values: Mapping[Any, Any]) -> None:
    file = None if source.path is None else str(source.path)
    for name, value in _leaves(values, source.lines, "", 0):
        line = source.lines.get(name)
        given.broken = [refused for refused in given.broken if refused.name != name]
        given.values[name] = value
        given.places[name] = Where(name, shown(value), file if line else None, line)


def _leaves(values: Mapping[Any, Any], lines: Mapping[str, int], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key if isinstance(key, str) else shown(key)}"
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            yield from _leaves(value, lines, f"{name}.", depth + 1)
        else:
            yield name, value


@dataclass(frozen=True)
class Running:
    """`Source.native` of a trainer's own arguments: its prompts are ordered by BatchBridge, keyed by train.seed."""
