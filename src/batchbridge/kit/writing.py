"""The promise of `Adapter.write`, kept: what an adapter has made of a spec is read back before anybody gets it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.errors import Problem
from batchbridge.kit.schedules import schedule_parts
from batchbridge.meaning.findings import Finding
from batchbridge.meaning.spec import Spec

UNKNOWN = ("objective.", "carried.", "advantage.", "critic.learning_rate", "critic.max_gradient_norm")
"""Groups of canonical fields, and fields, in which None means unknown, so that a framework's default may fill it in."""


class Problems(list[Problem]):
    """Problems of a `CannotWrite`, gathered while `adapter` writes `spec`."""

    def __init__(self, adapter: Adapter | None = None, spec: Spec | None = None) -> None:
        super().__init__()
        self._adapter, self._spec = adapter, spec

    def add(self, reason: str, *fields: str, nearest: Iterable[Mapping[str, Any]] = ()) -> None:
        """Adds a problem of the canonical `fields`, with the ways out of it, as in `Problem`."""
        self.append(Problem(fields, reason, tuple(nearest)))

    def need(self, holds: bool, reason: str, *fields: str, nearest: Iterable[Mapping[str, Any]] = ()) -> bool:
        """Adds a problem of the canonical `fields` unless `holds`, and gives `holds` back."""
        if not holds:
            self.add(reason, *fields, nearest=nearest)
        return holds

    def fits(self, holds: bool, path: str, why: str, legal: Iterable[Any] = ()) -> bool:
        """Adds the problem of a field with its value, `path = value: why`, unless `holds`, and gives `holds` back.
        legal: the values that the framework takes."""
        if not holds:
            assert self._spec is not None, "Problems(adapter, spec)"
            ways = ({path: value} for value in dict.fromkeys(legal))
            self.add(f"{path} = {self._spec.values.get(path)}: {why}", path, nearest=ways)
        return holds

    def schedule(self, text: str) -> tuple[str, dict[str, Any]] | None:
        """(name, arguments) of a `carried.lr_schedule`; None, and a problem, where it is no such text."""
        try:
            return schedule_parts(text)
        except ValueError as error:
            ways = ({"carried.lr_schedule": name} for name in ("constant", "linear"))
            self.add(f"carried.lr_schedule = {text}: {error}", "carried.lr_schedule", nearest=ways)
            return None

    def given(self, value: object, path: str, *legal: Any) -> bool:
        """Adds a problem where a field that the framework needs is open, and says whether it is not. legal: values to
        take instead."""
        ways = ({path: one} for one in legal)
        return self.need(value is not None, f"{path} is open: {self._name} needs it", path, nearest=ways)

    def whole(self, value: float, path: str, what: str) -> int:
        """A number as a whole number of `what`; adds a problem where it is none."""
        ways = ({path: near} for near in sorted({max(1, round(value)), math.floor(value), math.ceil(value)} - {0}))
        self.need(value == int(value), f"{path} = {value}: {self._name} takes whole {what}", path, nearest=ways)
        return int(value)

    def word(self, value: object, path: str, words: Mapping[str, Any]) -> str | None:
        """The native word for a canonical one, the first where there are several; None, and a problem, where there is
        none."""
        native = next((native for native, canonical in words.items() if canonical == value), None)
        known = dict.fromkeys(words.values())
        has = f"{path} = {value}: {self._name} has {', '.join(map(str, known))}"
        self.need(native is not None, has, path, nearest=({path: word} for word in known))
        return native

    @property
    def _name(self) -> str:
        return "the framework" if self._adapter is None else self._adapter.framework

    def no_setting(self, reason: str, key: str, newest: Mapping[str, Any], version: str) -> None:
        """Adds the problem that a version has no setting `key`: of the canonical fields that come from it; where the
        settings leave the run open, those that come from it at its default.

        newest: all settings, as `version`, which has it, says them.
        """
        assert self._adapter is not None, "Problems(adapter)"
        context = Context(framework_version=version)
        fields = _from({key}, _read_back(self._adapter, newest, context)[0])
        fields = fields or _from({key}, _read_back(self._adapter, {}, dataclasses.replace(context, world_size=1))[0])
        self.add(reason, *fields)


def objections(adapter: Adapter, spec: Spec, values: Mapping[str, Any], context: Context) -> Iterator[Problem]:
    """Problems of written settings: where the native `values` mean something else than `spec`, or are refused.

    A refusal's fields are those that come from the keys of its finding, so that a search knows where to look. `context`
    gives the version, and the world size where `values` do not say it.
    """
    back, found = _read_back(adapter, values, context)
    broken = [finding for finding in found if finding.severity == "error" or finding.undecided]

    def without(key: str) -> Reading:
        rest = {other: value for other, value in values.items() if other != key}
        return _read_back(adapter, rest, context)[0]

    def defaults() -> Reading:
        return _read_back(adapter, {}, dataclasses.replace(context, world_size=1))[0]

    refused = [
        _refusal(spec, finding, back, without, defaults, [*_ways_out(adapter, spec, values, context, finding)])
        for finding in (*back.findings, *broken)
    ]
    yield from refused
    if back.spec is None:
        if not refused:
            yield Problem((), "the settings leave the run open")
        return
    if back.spec == spec:
        return
    wanted, read = spec.values, back.spec.values

    def said_instead(path: str) -> dict[str, Any]:
        """The framework's value of a field, and of others that come from the same settings."""
        origin = back.provenance.get(path)
        keys = set() if origin is None else {*origin.keys}
        with_it = (other for other, its in back.provenance.items() if keys & {*its.keys} and other in read)
        for group, whole in (("loss.kl", _kl), ("loss.entropy", _entropy), ("critic.", _critic)):
            if path.startswith(group) and None in (whole(spec), whole(back.spec)):  # it comes or goes as a whole
                return {group: whole(back.spec)}
        return {path: read.get(path)} | {other: read[other] for other in with_it if read[other] != wanted.get(other)}

    for path in {**wanted, **read}:
        if read.get(path) == wanted.get(path):
            continue
        unknown = wanted.get(path) is None and path.startswith(UNKNOWN)
        if path == "open_terms" and (lost := [name for name in spec.open_terms if name not in back.spec.open_terms]):
            text = f"{adapter.framework} has no term {', '.join(lost)}, and the schema no word for it"
            yield Problem((path,), text, ({path: tuple(name for name in spec.open_terms if name not in lost)},))
        elif not unknown:
            text = f"{path} = {wanted.get(path)}: {adapter.framework} would do {read.get(path)}"
            yield Problem((path,), text, (said_instead(path),))


_kl, _entropy, _critic = attrgetter("loss.kl"), attrgetter("loss.entropy"), attrgetter("critic")


def _ways_out(
    adapter: Adapter, spec: Spec, values: Mapping[str, Any], context: Context, finding: Finding
) -> Iterator[dict[str, Any]]:
    """The fixes of a finding as changes of canonical fields: what the settings mean once a fix has changed them."""
    wanted = spec.values
    for fix in finding.fixes:
        if not fix.changes:
            continue
        fixed = {key: value for key, value in {**values, **fix.changes}.items() if value is not None}
        back = adapter.read(Source(values=fixed), context)
        if back.spec is None:
            continue
        means = back.spec.values
        changed = (path for path in _from({*fix.changes}, back) if path in means and means[path] != wanted.get(path))
        if way := {path: means[path] for path in changed}:
            yield way


def _refusal(
    spec: Spec,
    finding: Finding,
    back: Reading,
    without: Callable[[str], Reading],
    defaults: Callable[[], Reading],
    ways: Sequence[Mapping[str, Any]],
) -> Problem:
    """A finding as a problem of the fields that come from its keys; where it leaves no spec, each key at its default
    shows them, and where none of these does, all of them at their defaults."""
    keys = {place.key: None for place in finding.where if place.key is not None}
    own = [path for path, origin in back.provenance.items() if origin.key in keys]
    fields = tuple(dict.fromkeys((*own, *_from({*keys}, back))))
    said = [path for path in fields if path not in finding.message]
    if not fields:
        fields = tuple(dict.fromkeys(path for key in keys for path in _from({key}, without(key))))
        fields = fields or _from(set(keys), defaults())
    sized = [path for path in fields if path.startswith(("optimizer_step.completions", "rollout.prompts"))]
    here = spec if back.spec is None else dataclasses.replace(spec, topology=back.spec.topology)
    whole_rollouts = any(path.startswith("rollout.") for path in fields)
    from batchbridge.kit.even_sizes import even_sizes

    even = even_sizes(here, whole_rollouts=whole_rollouts) if sized else ()
    return Problem(fields, f"{finding.message} ({', '.join(said)})" if said else finding.message, (*even, *ways))


def _from(keys: set[str], reading: Reading) -> tuple[str, ...]:
    return tuple(path for path, origin in reading.provenance.items() if keys & set(origin.keys))


def _read_back(adapter: Adapter, values: Mapping[str, Any], context: Context) -> tuple[Reading, Sequence[Finding]]:
    """The meaning of `values` to `adapter`, and what its rules say of them."""
    back = adapter.read(Source(values=values), context)
    return back, adapter.check(back)


def nodes_and_gpus(world: int) -> tuple[int, int]:
    """Nodes and GPUs per node (at most 8, as many as divide) of `world` devices."""
    gpus = next(size for size in range(min(world, 8), 0, -1) if world % size == 0)
    return world // gpus, gpus
