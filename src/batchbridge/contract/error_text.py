"""A text that a framework prints, and what it means; what a rule is called, and why it matters.

Titles are data: `titles.json` beside `batchbridge.rules` has the codes of every framework (BB101), that of an adapter
its own.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import NamedTuple, Protocol

from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Fix, Phase, Severity

Numbers = Mapping[str, int]
"""The numbers that a text says or the user adds: name to whole number, each in the unit that its question names."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A number that a text does not say: its name (`--with NAME=NUMBER`) and the question."""

    name: str
    question: str


@dataclass(frozen=True, kw_only=True)
class ErrorText:
    """A text that a framework prints, and what it means.

    pattern: a regular expression over the text with all white space as single blanks; groups are whole numbers by name.
    versions: a PEP 440 specifier, or words where they are not known. rule: what must hold, in the user's keys and
    units. meaning: what happened, and why. phase: when the framework notices. neighbours: legal values from the numbers
    (those of the text, and those asked for). asks: numbers without which there are no (or fewer) neighbours. counts:
    what of a configuration a number of the text is, `devices` (that hold copies of the policy) or a derived number
    (`batchbridge.meaning.derived.UNITS`), so that the two can be compared. codes: the rules about it. of_memory: the
    device's memory was full, which no rule is about: of a configuration its micro-batch is said.

    A row of a rule carries its text without what the row says itself: framework, phase and codes; the pattern, where it
    is the message that the row quotes; versions and source, but where the text is printed or was reported elsewhere. A
    text that no rule is about says all of them.
    """

    name: str
    framework: str = ""
    versions: str = ""
    pattern: str = ""
    rule: str
    meaning: str
    phase: Phase = "config"
    source: str = ""
    neighbours: Callable[[Numbers], Iterable[Fix]] = lambda numbers: ()
    asks: tuple[Ask, ...] = ()
    counts: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[str, ...] = ()
    of_memory: bool = False


class RuleRow(Protocol):
    """A row of an adapter's rules, as far as the core reads it; see `batchbridge.kit.rule_table.Rule`, which may also
    say `core`, `text` and `retired`."""

    @property
    def code(self) -> str:
        """The stable code, such as BB-TRL-021."""

    @property
    def severity(self) -> Severity:
        """The severity of a broken rule."""

    @property
    def phase(self) -> Phase:
        """The phase in which the framework itself would notice."""

    @property
    def native(self) -> object:
        """The framework's own words or act; only text is read."""

    @property
    def source(self) -> str:
        """The place where that was read."""

    @property
    def versions(self) -> str:
        """A range; empty: all."""


HOUSE = "batchbridge.rules"


class RuleTitle(NamedTuple):
    """A rule's title, at most 60 characters that name what is wrong, and why it matters, in one sentence."""

    title: str
    why: str


@cache
def titles_in(package: str) -> Mapping[str, RuleTitle]:
    """The titles in a package's `titles.json`, `{"BB-NAME-010": ["title", "Why."]}`, by code; none without the file."""
    try:
        found = pkgutil.get_data(package, "titles.json") if package else None
    except OSError:
        return {}
    return {} if found is None else {code: RuleTitle(*said) for code, said in json.loads(found).items()}
