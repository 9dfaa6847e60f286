"""A reading of what a run left behind: the version that it was trained with, and keys that are nobody's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from batchbridge.contract.reading import Context, Provenance, Reading, RunRecord
from batchbridge.meaning.findings import Finding, Fix, Where

if TYPE_CHECKING:
    from batchbridge.contract.adapter import Adapter
    from batchbridge.kit.key_table import Codes

_AnyReading = TypeVar("_AnyReading", bound=Reading)
_MOST_NAMED = 3


def recorded(record: RunRecord, adapter: Adapter, said: Context) -> tuple[Context, list[Finding]]:
    """What is said of a run, with what its record says where nobody says it otherwise; and notes on that."""
    told = f"; it says {', '.join(record.told)}" if record.told else ""
    notes = [_note("BB026", f"this is {record.kind}: nothing parses it again{told}")]
    name = adapter.distribution or adapter.framework
    if said.framework_version is None:
        version = record.versions.get(name)
        if version is not None:
            said = replace(said, framework_version=version[0])
            notes.append(_note("BB024", f"no version of {name} was named: {version[1]} says {version[0]}, which is taken"))
        else:
            text = f"the record does not say the version of {name}, and what is installed here need not be it"
            notes.append(_note("BB026", text, Fix("name it with --framework-version")))
    if said.dataset_size is None and record.dataset_size is not None:
        said = replace(said, dataset_size=record.dataset_size.value)
        notes.append(_note("BB026", f"the dataset has {record.dataset_size.value:,} prompts ({record.dataset_size.place})"))
    return said, notes


def _note(code: str, text: str, *fixes: Fix) -> Finding:
    return Finding(code, "note", "config", text, fixes=fixes)


def as_of_record(record: RunRecord, reading: _AnyReading, codes: Codes, name: str) -> _AnyReading:
    """A reading of a record: keys that are no settings of the framework's are left out (it holds its model's
    configuration, too); a value that is not of its key's kind leaves the verdict open, since it may be another key's;
    and no line is said of a file that has none. name: the framework's, in sentences."""
    kept: list[Finding] = []
    strangers: list[str] = []
    for finding in reading.findings:
        if finding.code == codes.unknown_key:
            strangers += [where.key for where in finding.where if where.key]
        elif finding.code == codes.wrong_value and finding.severity == "error":
            kept.append(replace(finding, undecided=True))
        else:
            kept.append(finding)
    if strangers:
        kept.append(_left_out(strangers, f"{name} {reading.framework_version or ''}".strip()))
    if record.partial:
        text = f"{record.kind} is not all that it was told: every other setting is read at its default"
        fix = Fix("name what differs with --set KEY=VALUE, or the run's own configuration")
        kept.append(Finding("BB027", "error", "config", text, fixes=(fix,), undecided=True))
    given = {key: place for key, place in reading.given.items() if key not in strangers}
    provenance = reading.provenance
    if not record.has_lines:
        kept = [replace(one, where=tuple(map(_without_line, one.where))) for one in kept]
        given = {key: _without_line(place) for key, place in given.items()}
        provenance = {path: _origin_without_line(origin) for path, origin in provenance.items()}
    return replace(reading, findings=tuple(kept), given=given, provenance=provenance)


def _left_out(strangers: Sequence[str], name: str) -> Finding:
    first = ", ".join(strangers[:_MOST_NAMED])
    if not strangers[1:]:
        return _note("BB026", f"a key of the record is no setting of {name}, and is left out: {first}")
    more = f" and {len(strangers) - _MOST_NAMED} more" if strangers[_MOST_NAMED:] else ""
    return _note("BB026", f"{len(strangers)} keys of the record are no settings of {name}, and are left out: {first}{more}")


def _without_line(place: Where) -> Where:
    return replace(place, line=None)


def _origin_without_line(origin: Provenance) -> Provenance:
    detail = origin.detail.replace(f"{origin.file}:{origin.line}", str(origin.file))
    return origin if origin.line is None else replace(origin, detail=detail, line=None)
