"""Specifications that become legal configurations: each is written, read back and checked by the framework's own rules.

A specification that is refused is tried in the micro-batches that the refusal offers (`Problem.nearest`). Of a legal
configuration, the settings are told that must change, and what is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product, zip_longest
from typing import Any

from batchbridge.comparing.comparison import Difference
from batchbridge.comparing.differences import compare
from batchbridge.comparing.nearest_spec import write
from batchbridge.comparing.other_words import ProblemTuple
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading, Source, Written
from batchbridge.errors import Problem
from batchbridge.kit.even_sizes import even_cuts
from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read_again

MAX_JUDGED = 80
"""Most configurations that are written, read and checked in one search; a launch of the corpus takes 8, at most 27."""
SMALLEST_MICRO_BATCH = Fraction(1, 2)
"""The least share of the present micro-batch that is offered where another choice keeps more of it: each optimizer
step takes so many more passes through the model."""
_NO = object()
"""The mark of no value."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Choice:
    """A legal configuration.

    title: what it changes. written: the configuration; settings: native keys that change, as (before, after), None
    where a key is not there. reading: what it means. lost: the differences in meaning; empty when all is kept.
    """

    title: str
    written: Written
    reading: Reading
    settings: Mapping[str, tuple[Any, Any]]
    lost: tuple[Difference, ...]

    def __repr__(self) -> str:
        return brief(self, self.title, many(self.settings, "changed setting"), f"{len(self.lost)} lost")

    @property
    def spec(self) -> Spec:
        """The specification that the configuration means."""
        assert self.reading.spec is not None, "only readings with a specification become choices"
        return self.reading.spec

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "title": self.title,
            "keeps_everything": not self.lost,
            "settings": {key: {"before": old, "after": new} for key, (old, new) in self.settings.items()},
            "lost": [difference.to_dict() for difference in self.lost],
            "derived": dict(self.reading.derived),
            "spec": self.spec.to_dict(),
            "text": dict(self.written.text),
        }


class Judge:
    """The judge of specifications: the framework's adapter writes each, reads it back and checks it; at most
    `MAX_JUDGED` times. refused: the reasons of the first one that was refused."""

    def __init__(self, adapter: Adapter, reading: Reading) -> None:
        self.adapter, self.before = adapter, reading
        self.refused: tuple[str, ...] = ()
        self._left = MAX_JUDGED
        assert reading.spec is not None, "asked by the caller"
        written = write(adapter, reading.spec, reading.framework_version)
        self._values = dict(settings_in(written.values)) if isinstance(written, Written) else {}

    def first(self, title: str, specs: Iterator[Spec]) -> Choice | None:
        """The first legal one with a micro-batch that is not far smaller; else the first legal one."""
        assert self.before.spec is not None, "asked by the caller"
        nearest = None
        for spec in specs:
            found = self.choice(title, spec)
            if found is not None and micro_share(found, self.before.spec) >= SMALLEST_MICRO_BATCH:
                return found
            nearest = nearest or found
        return nearest

    def plain(self, choice: Choice) -> Choice:
        """`choice` with the least settings: a key that the configuration does not have is set where it must be."""
        before = self.before
        given = {key: before.native[key] for key in before.places if key in before.native}
        told = None if before.spec is None else before.spec.topology.world_size
        # The devices may have been said beside the settings: by a launcher, or by whoever asks.
        wrong = [finding for finding in self._reading(given, told).findings if finding.severity == "error"]
        beside = {place.key for finding in wrong for place in finding.where}
        given = {key: value for key, value in given.items() if key not in beside}
        changes = {key: value for key, value in choice.written.values.items() if before.native.get(key, _NO) != value}
        # What the choice says in other words (TRL's generation_batch_size for steps_per_generation) may have to go.
        written = dict(settings_in(choice.written.values))
        others = {key: _NO for key in given if key not in written}  # in the user's order: the first ones go first
        sizes = ((None, None), (told, choice.spec.topology.world_size))
        for tried, (world, devices) in product((changes, {**changes, **others}), sizes):
            same = self._means(given, world) == before.spec
            if same and self._means({**given, **tried}, devices) == choice.spec:
                changes = tried
                break
        else:
            return choice
        told_of = _warned(choice.reading)
        for key in [*changes]:
            fewer = {other: value for other, value in changes.items() if other != key}
            read = self._reading(_there({**given, **fewer}), devices)
            if read.verdict == "valid" and read.spec == choice.spec and _warned(read) <= told_of:
                changes = fewer
        settings = {key: pair for key, pair in choice.settings.items() if key.split(".")[0] in changes}
        plain = {key: value for key, value in changes.items() if not isinstance(value, Mapping)}
        settings |= {key: (before.native.get(key), None if value is _NO else value) for key, value in plain.items()}
        return dataclasses.replace(choice, settings=settings)

    def _means(self, values: Mapping[str, Any], world: int | None) -> Spec | None:
        """The specification of settings on `world` devices; None where they are not valid."""
        reading = self._reading(_there(values), world)
        return reading.spec if reading.verdict == "valid" else None

    def _reading(self, values: Mapping[str, Any], world: int | None) -> Reading:
        return read_again(Source(values=values), self.adapter, self.before, world)

    def choice(self, title: str, spec: Spec) -> Choice | None:
        """`spec` as it is, or cut into the micro-batches that its refusals offer; None if none of these is legal."""
        if spec.topology.data_parallel_size.denominator != 1:
            return None
        tried: list[Spec] = []
        while self._left > 0:
            self._left -= 1
            tried.append(spec)
            written = write(self.adapter, spec, self.before.framework_version)
            if isinstance(written, Written):
                return self._read(title, spec, written)
            self.refused = self.refused or tuple(map(str, written))
            if any(problem.fields and not _is_of_sizes(problem) for problem in written):
                self._left = 0  # no size ends that: neither these nor any others are legal
            cut = next((other for other in _other_cuts(spec, written) if other not in tried), None)
            if cut is None:
                return None
            spec = cut
        return None

    def _read(self, title: str, spec: Spec, written: Written) -> Choice | None:
        back = self._reading(written.values, spec.topology.world_size)
        errors = [finding.message for finding in back.findings if finding.severity == "error"]
        if back.spec is None or back.verdict != "valid":
            self.refused = self.refused or tuple(errors)
            return None
        before, values = self._values, dict(settings_in(written.values))
        pairs = {key: (before.get(key), values.get(key)) for key in {**before, **values}}
        settings = {key: (old, new) for key, (old, new) in pairs.items() if old != new}
        return Choice(title=title, written=written, reading=back, settings=settings, lost=tuple(self._lost(back)))

    def _lost(self, back: Reading) -> Iterator[Difference]:
        for difference in compare(self.before, back).differences:
            if difference.aspect != "outside":  # that is not written, and stays
                yield difference


def micro_share(choice: Choice, before: Spec) -> Fraction:
    """The micro-batch as a share of the present one; 1 where either has none."""
    micro, now = choice.spec.micro_batch.completions_per_device, before.micro_batch.completions_per_device
    return Fraction(micro, now) if micro and now else Fraction(1)


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not _NO}


def _warned(reading: Reading) -> set[str]:
    """The rules that warn of a reading: a size that the framework rounds without a word, say."""
    return {finding.code for finding in reading.findings if finding.severity == "warning"}


_SIZED = ("topology.", "micro_batch.", "optimizer_step.", "rollout.", "critic.")


def _is_of_sizes(problem: Problem) -> bool:
    """Whether a problem names one of the fields that a scaling may change."""
    return any(path.startswith(_SIZED) for path in problem.fields)


def _other_cuts(spec: Spec, problems: ProblemTuple) -> Iterator[Spec]:
    """`spec` in other micro-batches, the nearest first: one way out of every problem that changes nothing else. Nothing
    where a problem has no such way: then micro-batches do not decide it."""
    ways = []
    for problem in problems:
        cuts = [way for way in problem.nearest if all(path.startswith("micro_batch.") for path in way)]
        ways.append(cuts if problem.nearest else [*even_cuts(spec)])
    for together in zip_longest(*ways) if all(ways) else ():
        changes: dict[str, Any] = {}
        for way in filter(None, together):
            changes |= way if "micro_batch." not in changes else {}
        yield spec.replace(**({"micro_batch.": changes["micro_batch."]} if "micro_batch." in changes else changes))
