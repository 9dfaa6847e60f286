"""Programs of other people that are known by name: whose trainer they build, and what a batch counts there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batchbridge.contract.reading import Condition
from batchbridge.contract.reading import CountedSizes as CountedSizes  # tables have it from here
from batchbridge.meaning.findings import Where


class KnownProgram(NamedTuple):
    """A program, or a family of copies of one.

    name: its name in sentences. classes: a pattern (`re.fullmatch`) of the classes that it trains with. program: one
    (`re.search`) of the words that start it. keys: settings that no other program has; one of them tells it. counts:
    the sentence about what a batch has there, of native settings; a mapping may lack any of them. source: where that
    was read. sizes: those of its batches, of the same settings; None of them: not decided. Without it the program
    counts as the framework does. silent: codes of the framework's rules about what it does otherwise.
    takes: settings that the framework lacks, or reads otherwise, and that this program reads itself.
    """

    name: str
    counts: Callable[[Mapping[str, Any]], str]
    source: str
    classes: str = ""
    program: str = ""
    keys: frozenset[str] = frozenset()
    sizes: Callable[[Mapping[str, Any]], CountedSizes | None] | None = None
    silent: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()

    def told_by(self, classes: Iterable[str], words: str, keys: Iterable[str]) -> bool:
        """Whether classes, the words of a command, or keys tell it."""
        of_class = self.classes and any(re.fullmatch(self.classes, name) for name in classes)
        return bool(of_class or (self.program and re.search(self.program, words)) or self.keys & {*keys})


def known_program(
    table: Sequence[KnownProgram], classes: Iterable[str], words: Sequence[str], keys: Iterable[str]
) -> KnownProgram | None:
    """The first program of a table that is told by classes, by the words that start it, or by keys."""
    classes, keys, line = tuple(classes), tuple(keys), " ".join(words)
    return next((row for row in table if row.told_by(classes, line, keys)), None)


def condition(
    framework: str,
    trainer: str,
    who: str,
    why: str,
    known: KnownProgram | None,
    native: Mapping[str, Any],
    where: Where,
) -> Condition:
    """The condition that a run of `who` (a program, or a class) trains as the framework's own `trainer` does.

    why: what is seen of it, as a sentence without its end.
    """
    supposed = f"{who} trains as {framework}'s {trainer} does"
    if known is None:
        return Condition(supposed, framework, why, (where,))
    said = f"in {known.name}, {known.counts(native)}"
    if known.sizes is None:
        return Condition(supposed, framework, said, (where,), silent=known.silent)
    return Condition(supposed, framework, said, (where,), True, known.sizes(native), known.silent)


def positive(native: Mapping[str, Any], *keys: str) -> tuple[int, ...] | None:
    """The values of settings that are all positive integers; None where one is not."""
    values = tuple(native.get(key) for key in keys)
    whole = tuple(one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0)
    return whole if len(whole) == len(keys) else None
