"""Settings that the user gave, by key, and a command's words as TrlParser reads them.

TrlParser is an HfArgumentParser, which takes `--config FILE` out of the words before argparse sees them. Source: trl
0.18.0 and 1.16.0 TrlParser.parse_args_and_config; 1.16.0 trl/cli/commands/training.py, which hands accelerate the words
that the parser does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import command_line, parse_scalar, set_on_top
from batchbridge.kit.command_line import CommandLine
from batchbridge.kit.key_table import Key, gathered
from batchbridge.kit.kinds import WrongValue
from batchbridge_trl.recipe import KEY, name_of, starts
from batchbridge_trl.settings import CHOICES, ENVIRONMENT, LAUNCH, OF_LAUNCHER
from batchbridge_trl.values import TOO_LARGE, convert, too_large

_NO_FIELDS = frozenset(row.key for group in (LAUNCH, ENVIRONMENT) for row in group.settings)
"""Keys that no dataclass of the parser has."""


def user_settings(source: Source, rows: Mapping[str, Key], version: str) -> CommandLine:
    """Settings with their values and places, and what the parser refuses of a command."""
    if all("=" in word and not word.startswith("-") for word in source.argv):
        return _from_values(source.values, source, rows)
    given = _from_words(source, rows, version)
    loose = {}
    if script_of_ones_own(source.argv) is not None:  # which may take key=value
        loose = {key: _plain(text) for key, equals, text in (word.partition("=") for word in given.strays) if equals}
        given.strays = []
    on_top = _from_values(loose | set_on_top(source.values, source.argv), source, rows)
    given.refused = [refused for refused in given.refused if refused.name not in on_top.values]
    given.values |= on_top.values
    given.places |= on_top.places
    return given


def _from_values(values: Mapping[Any, Any], source: Source, rows: Mapping[str, Key]) -> CommandLine:
    """Dotted keys are put into their mapping."""
    given = gathered(((key, value) for key, value in values.items() if isinstance(key, str)), rows)
    lines = {key.partition(".")[0]: line for key, line in source.lines.items()} | dict(source.lines)
    places = {
        key: Where(key, printable(value), source.file_of(key) if lines.get(key) else None, lines.get(key))
        for key, value in given.items()
    }
    return CommandLine(given, places)


def _from_words(source: Source, rows: Mapping[str, Key], version: str) -> CommandLine:
    """A custom script may have further options, and take those that are known otherwise."""
    fields = {key: row for key, row in rows.items() if key not in _NO_FIELDS and not row.fixed}
    strict = script_of_ones_own(source.argv) is None
    options = command_line.options_of(fields, strict=strict)

    def objection(name: str, words: Any) -> tuple[str, str] | None:
        if isinstance(words, list) and not strict:
            return None
        try:
            if strict and words not in CHOICES.get(name, (words,)):
                raise WrongValue(f"one of {', '.join(CHOICES[name])}", f"argparse: argument --{name}: invalid choice")
            convert(rows[name], words, version, parsed=True)
        except WrongValue as wrong:
            return None if wrong is TOO_LARGE else wrong_value(name, _plain(words), wrong)
        return None

    words = list(source.argv[_start(source.argv) :])
    if f"--{KEY}" in words:
        del words[(place := words.index(f"--{KEY}")) : place + 2]
    found = command_line.parse(
        words, options, objection, lambda words: printable(_plain(words)), source, abbreviates=strict
    )
    for key, value in found.values.items():
        if isinstance(value, list) and not rows[key].kind.takes(value):
            found.values[key] = None  # a list of the script's own form, such as 1.0,0.5: not known
    for key in [key for key in found.values if key not in fields]:  # accelerate takes --num-processes, too
        name = key.replace("-", "_") if key.replace("-", "_") in _NO_FIELDS else key
        found.values[name], found.places[name] = _plain(found.values.pop(key)), found.places.pop(key)
    return found


def handed_on(given: CommandLine, argv: Sequence[str]) -> dict[str, str]:
    """Takes out what `trl grpo` hands on to accelerate's launcher: options as `Source.launcher` has them."""
    if (place := _place(argv)) is None or name_of(argv[place]) != "trl":
        return {}
    names = [key for key in given.values if key.replace("-", "_") in OF_LAUNCHER]
    return {key.replace("-", "_"): str(given.values.pop(key)) for key in names if given.places.pop(key)}


def _plain(words: Any) -> Any:
    """Values of words in YAML, for places and fixes."""
    if isinstance(words, list):
        return [_plain(word) for word in words]
    try:
        return parse_scalar(words) if isinstance(words, str) else words
    except ValueError:
        return words


def _start(argv: Sequence[str]) -> int:
    """Index of the first word behind the program."""
    place = _place(argv)
    return 0 if place is None else place + (2 if name_of(argv[place]) == "trl" else 1)


def _place(argv: Sequence[str]) -> int | None:
    """Index of the word that names the script or module that words start."""
    if not argv or "=" in argv[0] or (argv[0].startswith("-") and argv[0] != "-m"):
        return None
    named = (not word.startswith("-") and not name_of(word).startswith("python") for word in argv[:3])
    return next((place for place, is_name in enumerate(named) if is_name), None)


def program_of(argv: Sequence[str]) -> str | None:
    """The script or module that words start, where it is not TRL's."""
    place = _place(argv)
    return None if place is None or starts(argv, "grpo") else argv[place]


def script_of_ones_own(argv: Sequence[str]) -> str | None:
    """The script or module that words start, where it is neither TRL's nor Open-R1's: its parser is not known."""
    program = program_of(argv)
    return None if program is None or program.endswith("open_r1/grpo.py") else program


def wrong_value(key: str, value: object, wrong: WrongValue) -> tuple[str, str]:
    """The words of a finding about a value, and what the framework does with it."""
    return f"{key} = {shown(value)}: expected {wrong.expected}", wrong.native.replace("{key}", key)


def printable(value: Any) -> Any:
    """`value`, unless it holds integers that are too large: Python writes none of more than 4,300 digits."""
    return shown(value) if too_large(value) else value


def shown(value: object) -> str:
    """`value` in at most 60 characters, whatever it is."""
    try:
        text = repr(value)
    except Exception as error:  # an object's own __repr__, or an integer of more digits than Python writes
        return f"<{type(value).__name__}: {error}>"[:60]
    return text if len(text) <= 60 else text[:57] + "..."
