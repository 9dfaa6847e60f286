"""Command lines as Python's argparse takes them: options, their words, abbreviations, and what it refuses.

argparse stops at the first thing that it refuses; here all of them are found, in its order. Source: CPython 3.11
argparse, `_parse_optional`, `_get_values`.
"""

from __future__ import annotations

import bisect
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from batchbridge.contract.reading import Source
from batchbridge.frozen import dataclass
from batchbridge.kit.values import shown
from batchbridge.meaning.findings import Where
from batchbridge.reading.arguments import parse_arguments

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
"""Words with a leading dash that are values. Source: `_negative_number_matcher`; later Pythons take exponents too."""


class Takes(NamedTuple):
    """The words that an option takes: how many (None: as many as there are, but the `least`), and what it holds where
    it takes none."""

    number: int | None = 1
    constant: Any = None
    least: int = 0


class Refused(NamedTuple):
    """An occurrence of an option that argparse refuses: why, and in its own words."""

    name: str
    place: Where
    message: str
    native: str


@dataclass
class CommandLine:
    """What words give: option names in full to values and places.

    ambiguous: word to the options that it could be short for. refused: occurrences that are refused, in order. strays:
    words that no option takes. abbreviated: shortened name to the option it stands for.
    """

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Where] = field(default_factory=dict)
    ambiguous: dict[str, list[str]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    abbreviated: dict[str, str] = field(default_factory=dict)


Objection = Callable[[str, Any], tuple[str, str] | None]
"""Option and words to what argparse has against them: a message, and its own words."""


class _Word(NamedTuple):
    """A word as argparse sorts it: an option (`takes` is None: one that it does not know) with the value `attached` to
    it by =, or a value, which has no name."""

    text: str
    name: str | None = None
    takes: Takes | None = None
    attached: str | None = None


def parse(
    words: Sequence[str],
    options: Mapping[str, Takes],
    objection: Objection,
    shown: Callable[[Any], Any],
    source: Source,
) -> CommandLine:
    """The options that `words` of a source give; `shown` makes values plain and short."""
    found = CommandLine()
    file = None if source.path is None else str(source.path)
    rest = deque(_sorted(words, options, found))
    while rest:
        word = rest.popleft()
        if word.name is None:
            found.strays.append(word.text)
            continue
        line = source.lines.get(_name(word.text))
        place = Where(word.name, None, file if line else None, line)
        found.places.setdefault(word.name, place)
        count = None if word.takes is None else word.takes.number
        given = [word.attached] if word.attached is not None else _values(rest, count)
        if word.text in found.ambiguous:
            continue  # argparse stops there
        value: Any = given[0] if count == 1 and given else given
        if word.takes is None:
            value = word.attached if word.attached is not None else " ".join(given) or True
        elif refused := _objection(word.name, word.takes, word.attached, given, objection):
            found.refused.append(Refused(word.name, place, *refused))
            continue
        elif count == 0:
            value = word.takes.constant
        found.values[word.name] = value
        found.places[word.name] = Where(word.name, shown(value), place.file, place.line)
    return found


def _objection(
    name: str, takes: Takes, attached: str | None, given: list[str], objection: Objection
) -> tuple[str, str] | None:
    """A further occurrence replaces an earlier value, but argparse converts, and so refuses, each of them."""
    native = f"argparse: error: argument --{name}"
    if takes.number == 0:
        ignored = (f"--{name} takes no value; given: {attached}", f"{native}: ignored explicit argument")
        return None if attached is None else ignored
    if takes.number not in (None, len(given)) or len(given) < takes.least:
        wanted = {1: "a value", 2: "two values"}.get(takes.number or 0, "values")
        return f"--{name} needs {wanted}; given: {' '.join(given) or 'nothing'}", native
    return objection(name, given[0] if takes.number == 1 else given)


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0]


def _sorted(words: Sequence[str], options: Mapping[str, Takes], found: CommandLine) -> list[_Word]:
    """After a lone -- everything is a value."""
    end = next((index for index, word in enumerate(words) if word == "--"), len(words))
    return [*(_option(word, options, found) for word in words[:end]), *map(_Word, words[end:])]


def _option(word: str, options: Mapping[str, Takes], found: CommandLine) -> _Word:
    if len(word) < 2 or not word.startswith("-"):
        return _Word(word)
    name = word[2:].partition("=")[0]
    attached = word.partition("=")[2] if "=" in word else None
    unknown = _Word(word, _name(word), None, attached)
    if word.startswith("--"):
        if name in options:
            return _Word(word, name, options[name], attached)
        longer = [known for known in (*options, "help") if known.startswith(name)]
        if len(longer) > 1:
            found.ambiguous[word] = longer
        elif longer and longer[0] != "help":
            found.abbreviated[name] = longer[0]
            return _Word(word, longer[0], options[longer[0]], attached)
        if longer:
            return unknown
    return _Word(word) if _NUMBER.match(word) or " " in word else unknown


def _values(rest: deque[_Word], count: int | None) -> list[str]:
    """Takes the values of one option off the front of `rest`: `count` of them (None: as many as there are)."""
    taken: list[str] = []
    while rest and len(taken) != count and rest[0].name is None and rest[0].text != "--":
        taken.append(rest.popleft().text)
    return taken


# ---- transformers' HfArgumentParser: argparse with a flag for each field of a dataclass


def options_of(source: Source, names: Collection[str], on: Collection[str]) -> tuple[dict[str, Any], dict[str, Where]]:
    """(values, places) by the names of fields that the keys of a source stand for; see `spelled`. Lists are taken from
    its words, unless something else was set on top of them."""
    words, plain = words_by_name(source.argv), parse_arguments(source.argv)
    file = None if source.path is None else str(source.path)
    known = sorted(names)
    values: dict[str, Any] = {}
    places: dict[str, Where] = {}
    for key, value in source.values.items():
        if key in words and key in plain and plain[key] == value and type(plain[key]) is type(value):
            value = words[key]
        name, value = spelled(key if isinstance(key, str) else repr(key)[:60], value, known, on)
        line = source.lines.get(key)
        values[name], places[name] = value, Where(name, shown(value), file if line else None, line)
    return values, places


def words_by_name(argv: Sequence[str]) -> dict[str, Any]:
    """Key to value, words of lists joined in a list; `--no_x` is x: False, as HfArgumentParser adds for flags."""
    found: dict[str, Any] = {}
    place = 0
    while place < len(argv):
        word = argv[place]
        place += 1
        if not word.startswith("--") or word == "--":
            continue
        key, equals, text = word[2:].partition("=")
        words = [text] if equals else []
        while not equals and place < len(argv) and not argv[place].startswith("--"):
            words.append(argv[place])
            place += 1
        found[key] = True if not words else words[0] if len(words) == 1 else words
    return found


def spelled(key: str, value: Any, names: Sequence[str], on: Collection[str]) -> tuple[str, Any]:
    """The field and value that an option stands for: `--a-b` is a_b, `--no_x` is x off, and an unambiguous beginning
    is the whole name. A key that stands for nothing comes back as it is.

    names: of all fields, sorted. on: flags that are on by default, which alone have a `--no_x`. Source: transformers
    HfArgumentParser, Python argparse (allow_abbrev).
    """
    name = key.replace("-", "_")
    first = bisect.bisect_left(names, name)
    longer = [known for known in names[first : first + 2] if known.startswith(name)] if name else []
    if name in longer:
        return name, value
    positive = name.removeprefix("no_")
    if positive != name and positive in on and value is True:
        return positive, False
    return (longer[0], value) if len(longer) == 1 else (key, value)
