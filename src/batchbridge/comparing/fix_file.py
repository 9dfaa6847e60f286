"""The safe fixes of a configuration's findings, written into its file: renamed keys, and keys that nothing reads; or
one way out of an error, which the user chose.

A key keeps its place, its value and its comment under the new name; a key that goes takes its line with it, and every
other byte stays. The new text is read as the old one was: the findings must be gone, no other may have come, and, but
for a choice, the specification must be the old one except for what the renamed keys now say. What does not hold is
refused whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbridge.comparing.edit_file import decoded, save
from batchbridge.comparing.edit_text import EDITED, YAML, changed_text
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotEdit
from batchbridge.meaning.findings import Finding, Fix
from batchbridge.reading.documents import read_text
from batchbridge.reading.yaml_json import RefusedFile, parse_yaml


@dataclass(frozen=True, kw_only=True)
class FixedFile:
    """The outcome of the fixes for a file. old, new: its text before and with the fixes; `new` is None where nothing is
    to be fixed or `problems` say why nothing can be. done: for each fixed key what became of it. moved: canonical
    fields that the renamed keys decide now, with both values."""

    path: Path
    old: str = ""
    new: str | None = None
    done: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def write(self) -> None:
        """Writes `new`, whole or not at all, in the file's own encoding, and reads it back. Raises `OSError`."""
        assert self.new is not None
        save(self.new, self.path, self.path)
        if decoded(self.path.read_bytes())[0] != self.new:
            raise OSError(0, "what was written does not read back")


def safe_fixes(findings: Iterable[Finding]) -> list[tuple[Finding, Fix]]:
    """Findings with the one safe fix that they have; of several the user chooses."""
    found = [(finding, [fix for fix in finding.fixes if fix.safe]) for finding in findings]
    return [(finding, fixes[0]) for finding, fixes in found if len(fixes) == 1]


def fix_file(
    path: Path,
    before: Reading,
    findings: Sequence[Finding],
    again: Callable[[str], Reading],
    choice: tuple[Finding, Fix] | None = None,
) -> FixedFile:
    """The text of the file `path` with the safe fixes of `findings`, or with `choice`, one of a finding's ways out;
    nothing is written.

    before: what the file reads as. findings: those of it that count. again: reads a text of it as `before` was read.
    """
    if not (safe_fixes(findings) if choice is None else choice):
        return FixedFile(path=path)
    try:
        read_text(path, str(path))  # its limits
        old = decoded(path.read_bytes())[0]
    except RefusedFile as refused:
        return FixedFile(path=path, problems=(refused.finding.message,))
    except OSError as refused:
        return FixedFile(path=path, problems=(str(refused),))
    return fix_text(old, path, before, findings, again, choice)


def fix_text(
    old: str,
    path: Path,
    before: Reading,
    findings: Sequence[Finding],
    again: Callable[[str], Reading],
    choice: tuple[Finding, Fix] | None = None,
) -> FixedFile:
    """The same for the text `old`, whatever the file `path` has."""
    fixes = safe_fixes(findings) if choice is None else [choice]
    option = " --fix" if choice is None else ""
    if problems := tuple(dict.fromkeys(_elsewhere(path, before, fixes, option))):
        return FixedFile(path=path, problems=problems)
    try:
        names, changes = _changes(fixes, chosen=choice is not None)
        new = changed_text(old, path, before, changes, names)
    except CannotEdit as refused:
        return FixedFile(path=path, problems=refused.problems)
    if path.suffix.lower() in YAML and not isinstance(parse_yaml(new, str(path)).value, dict):
        return FixedFile(path=path, problems=("no setting would be left in the file",))
    after = again(new)
    moved = None if choice is not None else frozenset(names.values())
    if problems := tuple(_against(before, after, [finding for finding, _ in fixes], moved)):
        return FixedFile(path=path, problems=problems)
    done = tuple(_done(finding, names) for finding, _ in fixes) if choice is None else (choice[1].text,)
    return FixedFile(path=path, old=old, new=new, done=done, moved=tuple(_moved(before, after)))


def _elsewhere(path: Path, before: Reading, fixes: Iterable[tuple[Finding, Fix]], option: str) -> Iterator[str]:
    """Reasons why keys cannot be changed in `path`. option: of the command for another file."""
    kinds = "YAML files, launch scripts and Python programs are edited"
    if path.suffix.lower() not in EDITED:
        yield f"{path} is a {path.suffix or 'nameless'} file; {kinds}"
    for finding, fix in fixes:
        for key, value in fix.changes.items():
            named = next((place for place in finding.where if place.key == key), None)
            place = named if named is not None and named.file is not None else before.places.get(key)
            if place is not None and place.file is not None and place.file != str(path):
                at = place.file if place.line is None else f"{place.file}:{place.line}"
                yield f"{key} stands in {at}; fix that file: batchbridge check {place.file}{option}"
            elif value is None and (place is None or place.file is None or place.line is None):
                yield f"{key} stands in no file; {kinds}"
            elif value is not None and place is not None and place.file is None:
                yield f"{key} is not said in {path}: say it where the run is started"


def _changes(fixes: Iterable[tuple[Finding, Fix]], *, chosen: bool) -> tuple[dict[str, str], dict[str, Any]]:
    """(old name to new name, keys to their values, None for one that goes). chosen: values may change. Raises
    `CannotEdit`."""
    names: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for _, fix in fixes:
        old = [key for key, value in fix.changes.items() if value is None]
        new = [key for key, value in fix.changes.items() if value is not None]
        if chosen:
            changes |= fix.changes
        elif len(old) == 1 and len(new) == 1:
            names[old[0]] = new[0]
        elif old and not new:
            changes |= dict.fromkeys(old)
        else:
            raise CannotEdit(f"{fix.text}: only keys that are renamed, or that go, are fixed here")
    return names, changes


def _against(
    before: Reading, after: Reading, fixed: Iterable[Finding], new_names: frozenset[str] | None
) -> Iterator[str]:
    """Reasons why the new text is not what was meant. new_names: keys that may mean something else than before; None:
    the meaning was to change."""
    for finding in fixed:
        if any(finding.same_as(other) for other in after.findings):
            yield f"it would not help: {finding.message}"
    for finding in after.findings:
        if finding.severity == "error" and not any(finding.same_as(other) for other in before.findings):
            yield f"it would be wrong in another way: {finding.code} {finding.message}"
    if new_names is None:
        return
    if (before.spec is None) != (after.spec is None):
        yield "what the run means could not be compared"
    for moved in _moved(before, after):
        origins = [reading.provenance.get(moved.partition(":")[0]) for reading in (before, after)]
        if not any(origin is not None and new_names & set(origin.keys) for origin in origins):
            yield f"the run would mean something else: {moved}"


def _moved(before: Reading, after: Reading) -> Iterator[str]:
    """Canonical fields that differ."""
    if before.spec is not None and after.spec is not None:
        old = before.spec.values
        for path, value in after.spec.values.items():
            if old.get(path) != value:
                yield f"{path}: {old.get(path)} before, {value} now"


def _done(finding: Finding, names: dict[str, str]) -> str:
    place = next(place for place in finding.where if place.line is not None)
    became = f"{place.key} -> {names[place.key]}" if place.key in names else f"{place.key} removed"
    return f"{became} (line {place.line})"
