"""Command lines as Python's argparse takes them: options, their words, abbreviations, and what it refuses.

argparse stops at the first thing that it refuses; here all of them are found, in its order. Source: CPython 3.11
argparse, `_parse_optional`, `_get_values`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, NamedTuple

from batchbridge.contract.reading import Source
from batchbridge.frozen import dataclass
from batchbridge.kit.key_table import Codes, Key
from batchbridge.meaning.findings import Finding, Fix, Where

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
"""Words with a leading dash that are values. Source: `_negative_number_matcher`; later Pythons take exponents too."""


class OptionArity(NamedTuple):
    """The words that an option takes: how many (None: as many as there are), and at `least` (None: all of them), what
    it holds where it takes none, and the field that it sets, where that has another name. whole: no beginning of its
    name stands for it."""

    number: int | None = 1
    constant: Any = None
    least: int | None = None
    field: str = ""
    whole: bool = False


class RefusedOption(NamedTuple):
    """An occurrence of an option that argparse refuses: why, and in its own words."""

    name: str
    place: Where
    message: str
    native: str


@dataclass
class CommandLine:
    """Options that words give: names in full to values and places.

    ambiguous: word to the options that it could be short for. refused: occurrences that are refused, in order. strays:
    words that no option takes. abbreviated: shortened name to the option it stands for.
    """

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Where] = field(default_factory=dict)
    ambiguous: dict[str, list[str]] = field(default_factory=dict)
    refused: list[RefusedOption] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    abbreviated: dict[str, str] = field(default_factory=dict)


UNRECOGNIZED = "argparse: error: unrecognized arguments"
NOT_USED = "ValueError: Some specified arguments are not used by the HfArgumentParser"
Objection = Callable[[str, Any], tuple[str, str] | None]
"""Option and words to what argparse has against them: a message, and its own words."""


class _Word(NamedTuple):
    """A word as argparse sorts it: an option (`takes` is None: one that it does not know) with the value `attached` to
    it by =, or a value, which has no name."""

    text: str
    name: str | None = None
    takes: OptionArity | None = None
    attached: str | None = None


def parse(
    words: Sequence[str],
    options: Mapping[str, OptionArity],
    objection: Objection,
    shown: Callable[[Any], Any],
    source: Source,
    abbreviates: bool = True,
) -> CommandLine:
    """The options that `words` of a source give; `shown` makes values plain and short. abbreviates: whether a beginning
    stands for a name."""
    found = CommandLine()
    file = None if source.path is None else str(source.path)
    rest = deque(_sorted(words, options, found, abbreviates))
    while rest:
        word = rest.popleft()
        if word.name is None:
            found.strays.append(word.text)
            continue
        line = source.lines.get(_name(word.text))
        name = word.name if word.takes is None else word.takes.field or word.name
        place = Where(name, None, file if line else None, line)
        found.places.setdefault(name, place)
        count = None if word.takes is None else word.takes.number
        given = [word.attached] if word.attached is not None else _values(rest, count)
        if word.text in found.ambiguous:
            continue  # argparse stops there
        value: Any = given[0] if count == 1 and given else given
        if word.takes is None:
            value = word.attached if word.attached is not None else " ".join(given) or True
        elif refused := _objection(word.name, word.takes, word.attached, given, objection):
            found.refused.append(RefusedOption(name, place, *refused))
            continue
        elif not given and (count is not None or word.takes.constant is not None):
            value = word.takes.constant
        found.values[name] = value
        found.places[name] = Where(name, shown(value), place.file, place.line)
    return found


def refusals(line: CommandLine, codes: Codes, source: str) -> Iterator[Finding]:
    """Findings for what argparse refuses, in its order: ambiguous words while it sorts them, then values."""
    for word, longer in line.ambiguous.items():
        message = f"{word} could be short for {', '.join(longer[:6])}" + (" and others" if longer[6:] else "")
        fixes = tuple(Fix(f"write --{name}") for name in longer[:3])
        native, place = "argparse: error: ambiguous option", (Where(word[:60]),)
        yield Finding(codes.unknown_key, "error", "config", message, place, fixes, native, source=source)
    for one in line.refused:
        place = (one.place,)
        yield Finding(codes.wrong_value, "error", "config", one.message, place, (), one.native, source=source)


def strays(line: CommandLine, codes: Codes, source: str, native: str = UNRECOGNIZED) -> Iterator[Finding]:
    """The value that counts last; `native`: in the parser's words."""
    if line.strays:
        words = " ".join(line.strays)[:120]
        message, place, fix = f"no option takes {words!r}", Where(line.strays[0][:60] or "''"), Fix(f"remove {words!r}")
        yield Finding(codes.unknown_key, "error", "config", message, (place,), (fix,), native, source=source)


def _objection(
    name: str, takes: OptionArity, attached: str | None, given: list[str], objection: Objection
) -> tuple[str, str] | None:
    """A further occurrence replaces an earlier value, but argparse converts, and so refuses, each of them."""
    native = f"argparse: error: argument --{name}"
    if takes.number == 0:
        ignored = (f"--{name} takes no value; given: {attached}", f"{native}: ignored explicit argument")
        return None if attached is None else ignored
    if len(given) < ((takes.number or 0) if takes.least is None else takes.least):
        wanted = {1: "a value", 2: "two values"}.get(takes.number or 0, "values")
        return f"--{name} needs {wanted}; given: {' '.join(given) or 'nothing'}", native
    if takes.number == 1:
        return objection(takes.field or name, given[0]) if given else None
    return objection(takes.field or name, given)


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


def _sorted(
    words: Sequence[str], options: Mapping[str, OptionArity], found: CommandLine, abbreviates: bool
) -> list[_Word]:
    """After a lone -- everything is a value."""
    end = next((index for index, word in enumerate(words) if word == "--"), len(words))
    return [*(_option(word, options, found, abbreviates) for word in words[:end]), *map(_Word, words[end:])]


def _option(word: str, options: Mapping[str, OptionArity], found: CommandLine, abbreviates: bool) -> _Word:
    if len(word) < 2 or not word.startswith("-"):
        return _Word(word)
    name = word[2:].partition("=")[0]
    attached = word.partition("=")[2] if "=" in word else None
    unknown = _Word(word, _name(word), None, attached)
    if word.startswith("--"):
        if name in options:
            return _Word(word, name, options[name], attached)
        longer = [known for known in (*options, "help") if known.startswith(name)] if abbreviates else []
        longer = [known for known in longer if known not in options or not options[known].whole]
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


# ---- transformers' HfArgumentParser: argparse with options for each field of a dataclass


def options_of(
    rows: Mapping[str, Key], others: Mapping[str, Key] = MappingProxyType({}), *, strict: bool = True
) -> dict[str, OptionArity]:
    """The options that HfArgumentParser makes of fields: `--a_b` and `--a-b`, and for a flag that is on by default
    `--no_a_b` and `--no-a-b` too. Of `others` no default is known, and of those that are not a number, flag or word not
    even how many words they take.

    strict: false for a parser that may declare some of them itself, so that each may stand alone. Source: transformers
    4.51.3 to 5.23.0 HfArgumentParser._parse_dataclass_field.
    """
    fields = {key: _takes(row) for key, row in rows.items() if not row.fixed}
    on = {key for key in fields if rows[key].kind.name in ("bool", "bool?") and rows[key].default is True}
    counted = {"bool?": OptionArity(1, True, 0), "int?": OptionArity(), "float?": OptionArity(), "word?": OptionArity()}
    fields |= {
        key: counted.get(row.kind.name, OptionArity(None, True, 0)) for key, row in others.items() if key not in rows
    }
    options: dict[str, OptionArity] = {}
    for key, takes in fields.items():
        known = {key: takes if strict else takes._replace(constant=True, least=0)}
        if key in on or (key not in rows and takes.constant):
            known[f"no_{key}"] = OptionArity(0, False, whole=key not in on)  # whether it has one is not known of others
        for name, one in known.items():
            options[name] = options[name.replace("_", "-")] = one._replace(field=key)
    return options


def _takes(row: Key) -> OptionArity:
    if row.kind.name in ("ints", "floats", "texts"):
        return OptionArity(None, least=1)
    alone = row.kind.name in ("bool", "any or alone") or (row.kind.name == "bool?" and row.default is not None)
    return OptionArity(1, True, 0) if alone else OptionArity()
