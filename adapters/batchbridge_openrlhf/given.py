"""What the user gave: a launch command or a mapping, as option names with values and places.

A command is data. It may stand behind `ray job submit ... --`, `deepspeed --module`, `torchrun -m` or `python -m`;
whatever comes before the program is the launcher's. OpenRLHF itself has no configuration file: a YAML or JSON file of
options, dotted names nested or not, is BatchBridge's own convenience.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchbridge.adapter import Source
from batchbridge.findings import Where
from batchbridge_openrlhf.options import Option
from batchbridge_openrlhf.values import shown

PROGRAM = re.compile(r"(^|[./])train_ppo_ray(\.py)?$")
"""How a command names the trainer: a module or a file."""
OTHER_PROGRAM = re.compile(r"(^|[./])openrlhf[./]cli[./]\w+(\.py)?$")
"""OpenRLHF's other programs, which train by other rules."""
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$|-\d+(\.\d*)?e[+-]?\d+$", re.IGNORECASE)
"""Words with a leading dash that argparse takes for values. Source: CPython argparse, _negative_number_matcher; the
forms with an exponent are newer there, and harmless here."""
_SETTING = re.compile(r"[A-Za-z_][\w.]*=")
"""Settings without dashes (`train.batch_size=8`), as the command line's `--set` gives them; their values are YAML."""
_DEEPEST = 6
"""Levels of a nested mapping; the deepest dotted name has three."""


@dataclass
class Given:
    """Names in the user's spelling to values and places; `strays`: words that no option takes; `broken`: an option and
    what is wrong with how it was given; `other`: another OpenRLHF program that the command starts; `abbreviated`:
    shortened name to the option it stands for."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Where] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    abbreviated: dict[str, str] = field(default_factory=dict)
    other: str | None = None
    no_command: bool = False


def given_of(source: Source, options: Mapping[str, Option]) -> Given:
    """What `source` gives to a parser with these `options`. Values that replace arguments (`--set`) come last."""
    if not source.argv or all(_SETTING.match(word) for word in source.argv):
        given = Given()
        _take(given, source, source.values)
        return given
    given = _arguments(source, options)
    from batchbridge.sources import parse_arguments

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
    words = list(argv[0 if start is None else start + 1 :])
    while words:
        word = words.pop(0)
        if not _is_option(word):
            given.strays.append(word)
            continue
        name, equals, text = word.lstrip("-").partition("=")
        option, line = options.get(name), source.lines.get(name)
        if option is None:
            longer = [known for known in options if known.startswith(name)] if name else []
            if len(longer) == 1:
                given.abbreviated[name] = longer[0]
                name, option = longer[0], options[longer[0]]
        attached = [text] if equals else None
        given.places.setdefault(name, Where(name, None, file if line else None, line))
        if option is None:
            value: Any = attached[0] if attached else " ".join(_values(words, None)) or True
        elif option.kind in ("flag", "flag_off"):
            if attached:
                given.broken.append((name, f"--{name} takes no value; given: {text}"))
                continue
            value = option.kind == "flag"
        else:
            count = {"pair": 2, "floats": None, "words": None}.get(option.kind, 1)
            taken = attached if attached is not None else _values(words, count)
            if (count is not None and len(taken) != count) or (option.kind == "floats" and not taken):
                wanted = "a value" if count == 1 else "two values" if count == 2 else "values"
                given.broken.append((name, f"--{name} needs {wanted}; given: {' '.join(taken) or 'nothing'}"))
                continue
            value = taken[0] if count == 1 else taken
        given.values[name] = value
        given.places[name] = Where(name, shown(value), file if line else None, line)
    return given


def _is_option(word: str) -> bool:
    return word.startswith("--") and not _NUMBER.match(word)


def _values(words: list[str], count: int | None) -> list[str]:
    """Takes the values of one option off the front of `words`: `count` of them (None: as many as there are)."""
    taken: list[str] = []
    while words and len(taken) != count and not _is_option(words[0]):
        taken.append(words.pop(0))
    return taken


def _take(given: Given, source: Source, values: Mapping[Any, Any]) -> None:
    file = None if source.path is None else str(source.path)
    for name, value in _leaves(values, source.lines, "", 0):
        line = source.lines.get(name)
        given.values[name] = value
        given.places[name] = Where(name, shown(value), file if line else None, line)


def _leaves(values: Mapping[Any, Any], lines: Mapping[str, int], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key if isinstance(key, str) else shown(key)}"
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            yield from _leaves(value, lines, f"{name}.", depth + 1)
        else:
            yield name, value
