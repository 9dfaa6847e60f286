"""What a pasted error text or traceback means: the rule behind it, where it holds, and the legal neighbours.

The texts come from the adapters (`Adapter.error_texts`); those of frameworks without one stand here. Patterns
recognise short fragments and take the numbers out of them; nothing is guessed from anything else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

from batchbridge.contract.error_text import Ask, ErrorText, Numbers, RuleRow
from batchbridge.kit.error_texts import divisors, multiples, pattern, quotations, setting
from batchbridge.meaning.briefs import brief
from batchbridge.meaning.findings import Fix

MAX_CHARACTERS = 1 << 20
"""Of a longer text only the end is read: that is where a traceback says what happened."""
_LARGEST = 10**9
"""Larger numbers in a text are no sizes."""
_TIMES = 20
"""Most matches of one pattern that are reported."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """One recognised text: where (line, from 1), what it said, its numbers, the ways out, and what is still asked.

    codes: the rules that quote it.
    """

    text: ErrorText
    line: int
    said: str
    numbers: Numbers
    fixes: tuple[Fix, ...] = ()
    asks: tuple[Ask, ...] = field(default=())
    codes: tuple[str, ...] = ()

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
            "codes": list(self.codes),
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
        texts: The texts to look for; by default all that are known, those of installed adapters included, and behind
            them the messages that rules quote.

    Returns:
        One diagnosis for each text that was recognised; none where nothing is known.
    """
    flat, lines = _flat(text[-MAX_CHARACTERS:])
    found: dict[tuple[str, str], tuple[Diagnosis, int, int]] = {}
    for entry in known_texts() if texts is None else texts:
        for said, start, end, numbers in _matches(entry, flat):
            if (entry.name, said) not in found:
                found[entry.name, said] = _diagnosis(entry, said, lines(start), numbers, given or {}), start, end
    quoted = (
        [] if texts is not None else [(entry, *one[:3]) for entry in quoted_texts() for one in _matches(entry, flat)]
    )
    for key, (diagnosis, start, end) in found.items():
        codes = dict.fromkeys(entry.name for entry, _, first, last in quoted if first < end and start < last)
        found[key] = dataclasses.replace(diagnosis, codes=tuple(codes)), start, end
    told = [(start, end) for _, start, end in found.values()]
    for entry, said, start, end in quoted:
        if (entry.name, said) not in found and not any(start < last and first < end for first, last in told):
            known = dataclasses.replace(_diagnosis(entry, said, lines(start), {}, {}), codes=(entry.name,))
            found[entry.name, said] = known, start, end
    return tuple(sorted((diagnosis for diagnosis, *_ in found.values()), key=lambda diagnosis: diagnosis.line))


def _matches(entry: ErrorText, flat: str) -> Iterator[tuple[str, int, int, dict[str, int]]]:
    """What was said, from where to where, and its numbers; the first of many."""
    for match in islice(_compiled(entry.pattern).finditer(flat), _TIMES):
        numbers = {name: int(value) for name, value in match.groupdict().items() if value is not None}
        if max(numbers.values(), default=0) <= _LARGEST:
            yield match.group(), match.start(), match.end(), numbers


def known_texts() -> tuple[ErrorText, ...]:
    """The texts of the installed adapters, and those that stand here; an adapter that fails adds nothing."""
    from batchbridge.contract import plugins

    texts: list[ErrorText] = []
    for adapter in plugins.adapters().values():
        try:
            texts += adapter.error_texts()
        except Exception:  # a broken plugin must not keep the others' texts from a person in need
            continue
    return tuple({text.name: text for text in [*texts, *TEXTS]}.values())


def quoted_texts() -> tuple[ErrorText, ...]:
    """The messages that the rules of installed adapters quote, by the rule's code."""
    from batchbridge.contract import plugins

    found: dict[str, ErrorText] = {}
    for adapter in plugins.adapters().values():
        try:
            rows = plugins.rows(adapter)
        except Exception:  # as in `known_texts`
            continue
        # An adapter built upon another one, such as Open-R1's, has that one's rows.
        for row in rows if not adapter.rule_table or "rule_table" in vars(type(adapter)) else ():
            patterns = [*quotations(row.native), *([known.pattern] if (known := found.get(row.code)) else [])]
            if patterns and (known is None or known.framework == adapter.framework):
                found[row.code] = _quoted(row, adapter.framework, "|".join(dict.fromkeys(patterns)))
    return tuple(found.values())


def _quoted(row: RuleRow, framework: str, pattern: str) -> ErrorText:
    return ErrorText(
        name=row.code,
        framework=framework,
        versions=row.versions or "every version that is read",
        pattern=pattern,
        rule=f"{row.code}, of {framework}",
        meaning="the configuration breaks this rule; batchbridge check FILE names the line and the nearest fixes",
        phase=row.phase,
        source=row.source,
    )


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


def _skyrl_mini(n: Numbers) -> Iterator[Fix]:
    yield from (Fix(f"{size} rows") for size in multiples(n["mini"], n["rows"]))
    yield from (Fix(f"mini-batches of {size} rows") for size in divisors(n["rows"], n["mini"]))


def _unsloth(n: Numbers) -> Iterator[Fix]:
    yield Fix(
        f"say per_device_train_batch_size = {n['group']} yourself, with gradient_accumulation_steps and memory in mind",
        {"per_device_train_batch_size": n["group"]},
    )
    yield from setting("num_generations", *(size for size in divisors(n["micro"], n["group"], least=2)))


TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="unsloth-silent-rewrite",
        framework="unsloth",
        versions="with trl >=0.15 (no adapter reads Unsloth)",
        pattern=pattern(r"change the batch size of # to the `?num_generations`? of #", "micro", "group"),
        rule="per_device_train_batch_size is a multiple of num_generations",
        meaning="no error: Unsloth rewrites per_device_train_batch_size, so an optimizer step has more completions "
        "than was asked for, and memory may not suffice",
        phase="construction",
        source="unslothai/unsloth issues 2765 and 3572",
        neighbours=_unsloth,
    ),
    ErrorText(
        name="skyrl-mini-batch",
        framework="skyrl",
        versions="not known (no adapter reads SkyRL)",
        pattern=pattern(r"data batch size must be divisible by mini_batch_size, got # and #", "rows", "mini"),
        rule="the rows of a training batch are a multiple of the mini-batch",
        meaning="with several turns a trajectory gives several rows, so their number depends on the rollouts",
        phase="optimizer_step",
        source="NovaSky-AI/SkyRL issue 1501",
        neighbours=_skyrl_mini,
    ),
)
