"""The options that the user gave: a launch command or a mapping, as option names with values and places.

A command is data. It may stand behind `ray job submit ... --`, `deepspeed --module`, `torchrun -m` or `python -m`;
whatever comes before the program is the launcher's. OpenRLHF itself has no configuration file: a YAML or JSON file of
options, dotted names nested or not, is BatchBridge's own convenience.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import command_line
from batchbridge.kit.command_line import CommandLine, OptionArity
from batchbridge.kit.records import dataclass
from batchbridge_openrlhf import OTHER_PROGRAM, TRAINER
from batchbridge_openrlhf.settings import Option
from batchbridge_openrlhf.values import WrongOptionValue, convert, shown

_TAKES = {
    **dict.fromkeys(("pair", "texts"), OptionArity(2)),
    "floats": OptionArity(None, least=1),
    "words": OptionArity(None),
    "flag": OptionArity(0, True),
    "flag_off": OptionArity(0, False),
}
"""Kind of an option to the words that it takes; the others take one."""
_SETTING = re.compile(r"[A-Za-z_][\w.]*=")
"""Settings without dashes (`train.batch_size=8`), as the command line's `--set` gives them; their values are YAML."""
_DEEPEST = 6
"""Levels of a nested mapping; the deepest dotted name has three."""


@dataclass
class UserOptions(CommandLine):
    """The options that a command or a mapping gives.

    whole: a command from the program on, to which nothing is added.
    """

    whole: bool = False


def user_options(source: Source, options: Mapping[str, Option]) -> UserOptions | None:
    """The options that `source` gives to a parser with these `options`; None where its command does not start the
    trainer. Values that replace arguments (`--set`) come last."""
    if not source.argv or all(_SETTING.match(word) for word in source.argv):
        given = UserOptions()
        _take(given, source, source.values)
        return given
    start = program_of(source.argv)
    if start is None and (other_program(source.argv) or not is_bare(source.argv)):
        return None
    given = _arguments(source, options, start)
    from batchbridge.kit import set_on_top

    _take(given, source, set_on_top(source.values, source.argv))
    return given


def program_of(argv: Sequence[str]) -> int | None:
    """Index of the word that names the trainer."""
    return next((index for index, word in enumerate(argv) if re.search(TRAINER, word)), None)


def other_program(argv: Sequence[str]) -> str | None:
    """The word that names another program of OpenRLHF."""
    return next((word for word in argv if re.search(OTHER_PROGRAM, word)), None)


def is_bare(argv: Sequence[str]) -> bool:
    """Whether these are options or settings alone, without a program before them."""
    return bool(argv) and (argv[0].startswith("--") or bool(_SETTING.match(argv[0])))


def names_in(source: Source) -> list[str]:
    """Option names in `source`, whatever the version."""
    if source.argv and not all(_SETTING.match(word) for word in source.argv):
        start = program_of(source.argv)
        words = source.argv[0 if start is None else start + 1 :]
        return [word[2:].partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
    return [name for name, _ in _leaves(source.values)]


def _arguments(source: Source, options: Mapping[str, Option], start: int | None) -> UserOptions:
    def objection(name: str, words: Any) -> tuple[str, str] | None:
        try:
            convert(options[name], words)
        except WrongOptionValue as wrong:
            return (wrong_value(name, words, wrong), wrong.native) if wrong.phase == "config" else None
        return None

    takes = {name: _TAKES.get(option.kind, OptionArity()) for name, option in options.items()}
    words = source.argv[0 if start is None else start + 1 :]
    line = command_line.parse(words, takes, objection, shown, source)
    return UserOptions(**vars(line), whole=start is not None)


def wrong_value(name: str, value: object, wrong: WrongOptionValue) -> str:
    """The words of a finding about `value` of the option `name`."""
    return f"{name} = {shown(value)!r}: {wrong.expected} was expected"


def _take(given: UserOptions, source: Source, values: Mapping[Any, Any]) -> None:
    file = None if source.path is None else str(source.path)
    for name, value in _leaves(values):
        line = source.lines.get(name)
        given.refused = [refused for refused in given.refused if refused.name != name]
        given.values[name] = value
        given.places[name] = Where(name, shown(value), file if line else None, line)


def _leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key if isinstance(key, str) else shown(key)}"
        if isinstance(value, Mapping) and value and prefix.count(".") < _DEEPEST:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


@dataclass(frozen=True)
class RunningArguments:
    """`Source.native` of a trainer's own arguments: its prompts are ordered by BatchBridge, keyed by train.seed."""


def as_option_value(option: Option, value: Any) -> Any:
    """A value as the parser takes it: the program splits some texts at commas, and makes pairs of numbers."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) if option.kind == "str" else list(value)
    return value
