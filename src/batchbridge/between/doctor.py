"""What a pasted error text or traceback means: the rule behind it, where it holds, and the legal neighbours.

The texts are a table (`doctor_texts`); an adapter adds its own through `Adapter.error_texts`. Patterns recognise short
fragments and take the numbers out of them; nothing is guessed from anything else.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from batchbridge.briefs import brief
from batchbridge.findings import Fix, Phase
from batchbridge.solve import nearest

Numbers = Mapping[str, int]
"""What a text says or the user adds: name to whole number, each in the unit that its question names."""

MAX_CHARACTERS = 1 << 20
"""Of a longer text only the end is read: that is where a traceback says what happened."""
_LARGEST = 10**9
"""Larger numbers in a text are no sizes."""
_TIMES = 20
"""Most matches of one pattern that are reported."""


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
    (those of the text, and those asked for). asks: numbers without which there are no (or fewer) neighbours.
    """

    name: str
    framework: str
    versions: str
    pattern: str
    rule: str
    meaning: str
    phase: Phase
    source: str
    neighbours: Callable[[Numbers], Iterable[Fix]] = lambda numbers: ()
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """One recognised text: where (line, from 1), what it said, its numbers, the ways out, and what is still asked."""

    text: ErrorText
    line: int
    said: str
    numbers: Numbers
    fixes: tuple[Fix, ...] = ()
    asks: tuple[Ask, ...] = field(default=())

    def __repr__(self) -> str:
        return brief(self, self.text.name, f"line {self.line}", f"{len(self.fixes)} fixes")

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        text = self.text
        return {
            "name": text.name,
            "framework": text.framework,
            "versions": text.versions,
            "line": self.line,
            "said": self.said,
            "numbers": dict(self.numbers),
            "rule": text.rule,
            "meaning": text.meaning,
            "phase": text.phase,
            "fixes": [{"text": fix.text, "changes": dict(fix.changes)} for fix in self.fixes],
            "asks": [dataclasses.asdict(ask) for ask in self.asks],
            "source": text.source,
        }


def doctor(text: str, given: Numbers | None = None, texts: Sequence[ErrorText] | None = None) -> tuple[Diagnosis, ...]:
    """The known error texts in a pasted text or traceback, in the order of their places.

    Args:
        text: What a framework printed; of a long text the last 2**20 characters are read.
        given: Numbers that the text does not say, by the names that a diagnosis asks for.
        texts: The texts to look for; by default all that are known, those of installed adapters included.

    Returns:
        One diagnosis for each text that was recognised; none where nothing is known.
    """
    known = known_texts() if texts is None else texts
    flat, lines = _flat(text[-MAX_CHARACTERS:])
    found: dict[tuple[str, str], Diagnosis] = {}
    for entry in known:
        for count, match in enumerate(_compiled(entry.pattern).finditer(flat)):
            if count >= _TIMES:
                break
            said = {name: int(value) for name, value in match.groupdict().items() if value is not None}
            key = (entry.name, match.group())
            if key not in found and max(said.values(), default=0) <= _LARGEST:
                found[key] = _diagnosis(entry, match.group(), lines(match.start()), said, given or {})
    return tuple(sorted(found.values(), key=lambda diagnosis: diagnosis.line))


def known_texts() -> tuple[ErrorText, ...]:
    """The table, and what the installed adapters add; an adapter that fails adds nothing."""
    from batchbridge import plugins
    from batchbridge.between.doctor_texts import TEXTS

    texts = list(TEXTS)
    for adapter in plugins.adapters().values():
        try:
            texts += adapter.error_texts()
        except Exception:  # a broken plugin must not keep the others' texts from a person in need
            continue
    return tuple({text.name: text for text in reversed(texts)}.values())[
        ::-1
    ]  # adapters may share texts; the first counts


def _diagnosis(entry: ErrorText, said: str, line: int, numbers: Numbers, given: Numbers) -> Diagnosis:
    known = {**given, **numbers}
    missing = tuple(ask for ask in entry.asks if ask.name not in known)
    try:
        fixes = tuple(dict.fromkeys(_hashable(entry.neighbours(known))))
    except (KeyError, ZeroDivisionError):  # the neighbours need what is asked for, and no zeros
        fixes = ()
    return Diagnosis(text=entry, line=line, said=said, numbers=numbers, fixes=tuple(f.fix for f in fixes), asks=missing)


@dataclass(frozen=True)
class _Said:
    """A fix by its text: equal texts are one fix."""

    text: str
    fix: Fix = field(compare=False)


def _hashable(fixes: Iterable[Fix]) -> Iterator[_Said]:
    for fix in fixes:
        yield _Said(fix.text, fix)


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^(?:\([^()\n]{1,80}pid=\d+[^()\n]{0,80}\) |\[(?:default)?\d*\]:|\[rank\d+\]: ?)+", re.MULTILINE)
"""What Ray, torchrun (`--tee`, `[default0]:`) and PyTorch (`[rank0]:`) put before each line of a process."""


def _flat(text: str) -> tuple[str, Callable[[int], int]]:
    """`text` without colours and launchers' prefixes, with single blanks; and a function from position to line."""
    words, starts, length = [], [], 0
    for number, line in enumerate(_PREFIX.sub("", _ESCAPES.sub("", text)).splitlines(), 1):
        for word in line.split():
            starts.append((length, number))
            words.append(word)
            length += len(word) + 1

    def line_of(position: int) -> int:
        from bisect import bisect_right

        index = bisect_right(starts, (position, _LARGEST)) - 1
        return starts[index][1] if starts else 1

    return " ".join(words), line_of


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# ---- for writers of texts


def pattern(text: str, *names: str) -> str:
    """`text`, a regular expression, with its `#`s standing for whole numbers with these names, in order."""
    first, *rest = text.split("#")
    return first + "".join(rf"(?P<{name}>\d{{1,9}}){part}" for name, part in zip(names, rest, strict=True))


def setting(key: str, *values: int) -> Iterator[Fix]:
    """One way out for each value: `key = value`."""
    for value in values:
        yield Fix(f"{key} = {value}", {key: value})


def devices(*counts: int) -> Iterator[Fix]:
    """One way out for each number of devices."""
    for count in counts:
        yield Fix(f"{count} device{'' if count == 1 else 's'}")


def smallest_factor(of: int, others: int) -> int:
    """The smallest factor that makes `others` times it a multiple of `of`; 0 where there is none."""
    return of // math.gcd(of, others) if of and others else 0


def multiples(of: int, value: int) -> list[int]:
    """`value` if it is a multiple of `of`, else the nearest ones."""
    return [value] if of > 0 < value and value % of == 0 else nearest(value, multiple_of=of)


def divisors(number: int, value: int, least: int = 1) -> list[int]:
    """`value` if it divides `number`, else the nearest divisors, from `least` on."""
    divides = number > 0 and value >= least and number % value == 0
    return [value] if divides else nearest(value, divides=number, low=least)
