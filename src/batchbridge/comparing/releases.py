"""One configuration under every known release of its framework: where it is valid, and what changes at which."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batchbridge.comparing.differences import compare
from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading, RequiredVersions
from batchbridge.kit.versions import includes
from batchbridge.meaning.findings import Finding, Fix, Verdict
from batchbridge.reading.read import read, unnamed
from batchbridge.reading.undeclared import deciding, undeclared


@dataclass(frozen=True, kw_only=True)
class ReleaseSpan:
    """Consecutive releases that judge a configuration alike, from `first` to `last`.

    changes: canonical field to its values before and from `first` on. errors: what is wrong, in the words of `last`.
    """

    first: str
    last: str
    verdict: Verdict
    changes: dict[str, tuple[Any, Any]]
    errors: tuple[str, ...]

    @property
    def name(self) -> str:
        """`0.18.0`, or `0.16.0 to 0.18.2`."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {**vars(self), "changes": {field: list(values) for field, values in self.changes.items()}}


@dataclass(frozen=True, kw_only=True)
class ReleaseVerdicts:
    """A configuration under all known releases. spans: oldest first. reading: of a release that declares the most of
    its keys, of these one in which it is valid, else one in which no error is found, of these the newest. nowhere: keys
    that no release declares. deciding: keys that decide the sizes of batches in some release. declared: release to how
    many more keys it declares than it lacks. unnamed: the commit that is named in place of a release; empty: none."""

    spans: tuple[ReleaseSpan, ...]
    reading: Reading
    nowhere: tuple[str, ...] = ()
    deciding: frozenset[str] = frozenset()
    declared: Mapping[str, int] = field(default_factory=dict)
    unnamed: str = ""
    required: RequiredVersions | None = None

    @property
    def verdict(self) -> Verdict:
        """ "valid" or "invalid" where every release agrees on that."""
        verdicts = {span.verdict for span in self.spans}
        return verdicts.pop() if len(verdicts) == 1 else "undecided"

    def lines(self) -> Iterator[str]:
        """The lines that every release has in common, and a line for each span, for a person."""
        names = [span.name for span in self.spans]
        width = max(map(len, names))
        common = [error for error in self.spans[0].errors if all(error in span.errors for span in self.spans)]
        yield from (f"  in every version: {error}" for error in common)
        for name, span in zip(names, self.spans, strict=True):
            said = [error for error in span.errors if error not in common]
            said += [
                f"{field.removeprefix('native.').removeprefix('carried.')}: {_short(a)} before, {_short(b)} now"
                for field, (a, b) in span.changes.items()
            ]
            yield f"  {name.ljust(width)}  {span.verdict:<9}  {'; '.join(said)}".rstrip()


KeepFinding = Callable[[Finding], bool] | None
"""The findings that count; None: all."""


def judged(
    source: object, unversioned: Reading, keep: KeepFinding = None, unnamed: str = "", **said: Any
) -> ReleaseVerdicts | None:
    """`source` under every known release of its framework; None where it has none. unversioned: its reading, of no
    version; where a repository asks for versions, those of the releases alone count. unnamed: the commit that is named
    in place of a release. said: arguments of `read`."""
    framework, required = unversioned.framework, unversioned.required
    adapter = plugins.adapters().get(framework)
    releases = adapter.releases if adapter is not None else ()
    asked = [(version, read(source, framework=framework, version=version, **said)) for version in releases]
    if adapter is None or not asked:
        return None
    asked = [one for one in asked if not _coded(one[1], adapter.elsewhere)] or asked
    lacking = [undeclared(adapter, reading) for _, reading in asked]
    nowhere = tuple(key for key in lacking[-1] if all(key in keys for keys in lacking))
    refused = _refused_everywhere(adapter, [reading for _, reading in asked]) if nowhere else frozenset[str]()
    if required is not None and not unnamed:
        asked_for = [one for one in asked if includes(required.versions, one[0])]
        asked, required = (asked_for, required) if asked_for else (asked, None)
    asked = [(version, _perhaps_of_a_copy(adapter, reading, nowhere, refused)) for version, reading in asked]
    readings = [(version, reading.keeping(keep)) for version, reading in asked]  # what counts of each
    spans: list[ReleaseSpan] = []
    before: Reading | None = None
    for version, reading in readings:
        errors = tuple(_errors(reading))
        changes = {} if before is None else _changes(before, reading)
        last = spans[-1] if spans else None
        same = last is not None and last.verdict == reading.verdict and not changes
        if last and same and _alike(last.errors, last.last) == _alike(errors, version):
            spans[-1] = replace(last, last=version, errors=errors)
        else:
            spans.append(
                ReleaseSpan(first=version, last=version, verdict=reading.verdict, changes=changes, errors=errors)
            )
        before = reading if reading.spec is not None else before
    ranks = [(_declared(adapter, asked[place][1]), _RANKS[one.verdict]) for place, (_, one) in enumerate(readings)]
    best = max(range(len(readings)), key=lambda place: (*ranks[place], place))
    keys = frozenset(key for _, reading in asked for key in deciding(reading))
    declared = {version: rank[0] for (version, _), rank in zip(readings, ranks, strict=True)}
    shown = asked[best][1]
    if unnamed:
        shown = _as_of_a_release(shown, [reading for _, reading in asked])
    return ReleaseVerdicts(
        spans=tuple(spans),
        reading=shown,
        nowhere=nowhere,
        deciding=keys,
        declared=declared,
        unnamed=unnamed,
        required=None if unnamed else required,
    )


def _as_of_a_release(shown: Reading, readings: Sequence[Reading]) -> Reading:
    """The reading of a release that stands for a commit, which may lie before or after all that are known: what a
    framework's own rule refuses is open. What is wrong with the file itself is not."""
    found = []
    for one in shown.findings:
        if one.severity == "error" and not one.undecided and one.code.count("-"):
            alike = all(any(_same_error(one, other) for other in reading.wrong) for reading in readings)
            who = "and every other known release" if alike else "and not every release"
            one = replace(one, message=f"as {shown.framework_version} would, {who}: {one.message}", undecided=True)
        found.append(one)
    return replace(shown, findings=tuple(found))


def _same_error(one: Finding, other: Finding) -> bool:
    """Whether two releases refuse the same by the same rule."""
    keys, others = ({place.key for place in found.where} for found in (one, other))
    return one.code == other.code and (keys == others or bool(keys & others))


def _declared(adapter: Adapter, reading: Reading) -> int:
    """The number of keys that a release declares, less those that it lacks."""
    lacking = sum(max(1, len(one.where)) for one in reading.findings if one.code in adapter.undeclared)
    return sum(key in reading.native for key in reading.given) - lacking


def _refused_everywhere(adapter: Adapter, readings: Sequence[Reading]) -> frozenset[str]:
    """The keys whose value every release refuses that has the key."""
    wrong = [
        {str(place.key) for one in _coded(reading, adapter.mistyped) for place in one.where} for reading in readings
    ]
    lacking = [{*undeclared(adapter, reading)} for reading in readings]
    return frozenset(
        key for key in set().union(*wrong) if all(key in a or key in b for a, b in zip(wrong, lacking, strict=True))
    )


def _coded(reading: Reading, codes: Sequence[str]) -> list[Finding]:
    return [one for one in reading.findings if one.code in codes and one.severity == "error"]


def _perhaps_of_a_copy(adapter: Adapter, reading: Reading, nowhere: Sequence[str], refused: frozenset[str]) -> Reading:
    """A reading in which a key that no release declares is no certain error: whoever names no version may have a copy
    that declares it. refused: keys whose value no release takes, which such a copy may take, too."""
    own, found = set(nowhere), []
    for one in reading.findings:
        keys = {str(place.key) for place in one.where if place.key is not None}
        if one in _coded(reading, adapter.undeclared) and keys and keys <= own:
            message = f"{one.message}, nor has any other release; a copy of your own may"
            one = replace(one, message=message, undecided=True)
        elif own and one in _coded(reading, adapter.mistyped) and keys and keys <= refused:
            message = f"{one.message}, by every release that has it; your own copy, with {nowhere[0]}, may take it"
            one = replace(one, message=message, undecided=True)
        found.append(one)
    return replace(reading, findings=tuple(found))


_RANKS: dict[Verdict, int] = {"valid": 2, "undecided": 1, "invalid": 0}
MOST_DEVICES = 64
USUAL_DEVICES = 8
"""Devices of an example, where nobody says how many there are: those of a usual node."""


def example_of(source: object, reading: Reading, devices: Sequence[int], **said: Any) -> Reading | None:
    """The reading of `source` on the valid number of devices that is nearest to `USUAL_DEVICES`; None: there is none.
    An example of sizes, on which no verdict rests."""
    if not devices:
        return None
    size = min(devices, key=lambda one: (abs(one - USUAL_DEVICES), one))
    found = read(source, **{**_asked_again(reading, said), "world_size": size})
    return found if found.spec is not None else None


def on_example_devices(source: object, reading: Reading, **said: Any) -> Reading | None:
    """The example of a `reading` that lacks nothing but a number of devices, which nobody said; None: of any other.
    said: the arguments that `source` was read with."""
    if reading.spec is not None or reading.verdict != "undecided" or said.get("world_size") is not None:
        return None
    asked = {key: value for key, value in said.items() if key != "world_size"}
    return example_of(source, reading, valid_devices(source, reading, **asked), **asked)


def settled(source: object, reading: Reading, **said: Any) -> Reading:
    """The reading of a source whose version nothing names, under the release that declares the most of its keys; a note
    (BB044) says which. A reading with a version is returned as it is. said: arguments of `read`."""
    return settled_alike([(source, reading, said)])[0]


def settled_alike(asked: Sequence[tuple[object, Reading, Mapping[str, Any]]]) -> list[Reading]:
    """Readings as `settled` has them; those of one framework under one release, which declares the most of all their
    keys. asked: sources with their readings and the arguments of `read`."""
    found = [_judged_if_unnamed(*one) for one in asked]
    taken: list[Reading] = []
    for (source, reading, said), own in zip(asked, found, strict=True):
        if own is None:
            taken.append(reading)
            continue
        alike = [one for one in found if one is not None and one.reading.framework == reading.framework]
        versions = list(own.declared)
        best = max(versions, key=lambda version: (sum(one.declared[version] for one in alike), versions.index(version)))
        if best != own.reading.framework_version and len(alike) > 1:
            own = replace(own, reading=read(source, framework=reading.framework, version=best, **said))
        taken.append(_with_note(own))
    return taken


def _judged_if_unnamed(source: object, reading: Reading, said: Mapping[str, Any]) -> ReleaseVerdicts | None:
    why = unnamed(reading, reading.framework_version)
    named = reading.framework_version is not None and (not why or reading.spec is not None)
    return None if named or isinstance(source, Reading) else judged(source, reading, unnamed=why, **said)


def _with_note(found: ReleaseVerdicts) -> Reading:
    taken = found.reading
    others = "" if len(found.spans) == 1 else "; other releases read it otherwise, as `batchbridge check` lists"
    version = f"{taken.framework} {taken.framework_version}"
    why = found.unnamed or "no version was named"
    if found.required is not None:
        why += f", and {found.required.places} asks for {taken.framework} {found.required.versions}"
    message = f"{why}: {version} is taken, the newest that has the most of its keys{others}"
    note = Finding("BB044", "note", "config", message, fixes=(Fix("name one with --framework-version"),))
    return replace(taken, findings=(*taken.findings, note))


def valid_devices(source: object, reading: Reading, keep: KeepFinding = None, **said: Any) -> tuple[int, ...]:
    """World sizes from 1 to `MOST_DEVICES` (devices) on which an undecided `reading` of `source` would be valid; empty
    where something else than the world size is missing."""
    asked = _asked_again(reading, said)
    verdicts: dict[int, Verdict] = {}
    for size in range(1, MOST_DEVICES + 1):
        verdicts[size] = read(source, **{**asked, "world_size": size}).keeping(keep).supposed.verdict
        if size == 8 and set(verdicts.values()) == {"undecided"}:
            break
    return tuple(size for size, verdict in verdicts.items() if verdict == "valid")


def _asked_again(reading: Reading, said: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `read` by which a source is read as before: by its copy of the framework where it has one."""
    version = None if reading.copy is not None else reading.framework_version
    return {**said, "framework": reading.framework, "version": version}


def _changes(before: Reading, reading: Reading) -> dict[str, tuple[Any, Any]]:
    """The differences in meaning, by canonical field, and over what an unwrapped run counts its denominators."""
    found = {one.field: (one.a, one.b) for one in compare(before, reading).differences}
    return {
        field: values
        for field, values in found.items()
        if not field.startswith(("native.", "outside.")) or field == "native.denominator_scope"
    }


def _errors(reading: Reading) -> Iterator[str]:
    """The errors that keep a reading from being valid; of several findings with one code, all keys at once."""
    for code in dict.fromkeys(found.code for found in reading.wrong):
        alike = [found for found in reading.wrong if found.code == code]
        keys = dict.fromkeys(str(found.where[0].key) for found in alike if found.where and found.where[0].key)
        yield f"{code} {', '.join(keys) if len(alike) > 1 and keys else alike[0].message}"


def _alike(errors: tuple[str, ...], version: str) -> tuple[str, ...]:
    """Errors without the releases that they name."""
    return tuple(re.sub(r"\d+(\.\d+)+", "", error.replace(version, "")) for error in errors)


def _short(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
