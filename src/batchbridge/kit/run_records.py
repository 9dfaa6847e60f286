"""A reading of what a run left behind: keys that are no settings of the framework's are no errors there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from batchbridge.contract.reading import Provenance, Reading, RunRecord
from batchbridge.kit.key_table import Codes
from batchbridge.meaning.findings import Finding, Fix, Where

_AnyReading = TypeVar("_AnyReading", bound=Reading)
_MOST_NAMED = 3


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
        text = f"{record.kind}: not all that the run was told; every other setting is read at its default"
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
        return _note(f"a key of the record is not a setting of {name}, and is left out: {first}")
    more = f" and {len(strangers) - _MOST_NAMED} more" if strangers[_MOST_NAMED:] else ""
    return _note(f"{len(strangers)} keys of the record are not settings of {name}, and are left out: {first}{more}")


def _without_line(place: Where) -> Where:
    return replace(place, line=None)


def _origin_without_line(origin: Provenance) -> Provenance:
    detail = origin.detail.replace(f"{origin.file}:{origin.line}", str(origin.file))
    return origin if origin.line is None else replace(origin, detail=detail, line=None)


def _note(text: str) -> Finding:
    return Finding("BB026", "note", "config", text)
