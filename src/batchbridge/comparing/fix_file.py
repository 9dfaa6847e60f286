"""The safe fixes of a configuration's findings, written into its YAML file: renamed keys, and keys that nothing reads.

A key keeps its place, its value and its comment under the new name; a key that goes takes its line with it, and every
other byte stays. The new text is read as the old one was: the findings must be gone, no other may have come, and the
specification must be the old one but for what the renamed keys now say. What does not hold is refused whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from batchbridge.comparing.edit_file import decoded, save
from batchbridge.comparing.edit_yaml import REMOVED, edit, rename
from batchbridge.contract.reading import Reading, Source
from batchbridge.errors import CannotEdit
from batchbridge.meaning.findings import Finding, Fix
from batchbridge.reading.documents import read_text
from batchbridge.reading.files import SCRIPTS
from batchbridge.reading.yaml_json import RefusedFile, parse_yaml

YAML = frozenset({".yaml", ".yml"})
"""Suffixes of files that are edited."""


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


def fix_file(path: Path, before: Reading, findings: Iterable[Finding], again: Callable[[Source], Reading]) -> FixedFile:
    """The text of the YAML file `path` with the safe fixes of `findings`; nothing is written.

    before: what the file reads as. findings: those of it that count. again: reads a source as `before` was read.
    """
    fixes = safe_fixes(findings)
    if not fixes:
        return FixedFile(path=path)
    if problems := tuple(dict.fromkeys(_elsewhere(path, fixes))):
        return FixedFile(path=path, problems=problems)
    try:
        read_text(path, str(path))  # its limits
        old = decoded(path.read_bytes())[0]
        names, gone = _changes(fixes)
        new = rename(old, names) if names else old
        new = edit(new, dict.fromkeys(gone, REMOVED)) if gone else new
    except RefusedFile as refused:
        return FixedFile(path=path, problems=(refused.finding.message,))
    except (CannotEdit, OSError) as refused:
        return FixedFile(path=path, problems=getattr(refused, "problems", (str(refused),)))
    document = parse_yaml(new, str(path))
    if not isinstance(document.value, dict):
        return FixedFile(path=path, problems=("no setting would be left in the file",))
    after = again(Source(values=document.value, lines=document.lines, path=path, problems=tuple(document.problems)))
    problems = tuple(_against(before, after, [finding for finding, _ in fixes], frozenset(names.values())))
    if problems:
        return FixedFile(path=path, problems=problems)
    done = tuple(_done(finding, names) for finding, _ in fixes)
    return FixedFile(path=path, old=old, new=new, done=done, moved=tuple(_moved(before, after)))


def _elsewhere(path: Path, fixes: Iterable[tuple[Finding, Fix]]) -> Iterator[str]:
    """Reasons why keys cannot be changed in `path`."""
    places = {
        key: next((place for place in finding.where if place.key == key), None)
        for finding, fix in fixes
        for key, value in fix.changes.items()
        if value is None
    }
    if path.suffix.lower() not in YAML:
        kind = "a launch script" if path.suffix.lower() in SCRIPTS else f"a {path.suffix or 'nameless'} file"
        yield f"{path} is {kind}; only YAML files are edited"
    for key, place in places.items():
        if place is None or place.file is None or place.line is None:
            yield f"{key} stands in no file; only YAML files are edited"
        elif place.file != str(path):
            yield f"{key} stands in {place.file}:{place.line}; fix that file: batchbridge check {place.file} --fix"


def _changes(fixes: Iterable[tuple[Finding, Fix]]) -> tuple[dict[str, str], list[str]]:
    """(old name to new name, keys that go). Raises `CannotEdit`."""
    names: dict[str, str] = {}
    gone: list[str] = []
    for _, fix in fixes:
        old = [key for key, value in fix.changes.items() if value is None]
        new = [key for key, value in fix.changes.items() if value is not None]
        if len(old) == 1 and len(new) == 1:
            names[old[0]] = new[0]
        elif old and not new:
            gone += old
        else:
            raise CannotEdit(f"{fix.text}: only keys that are renamed, or that go, are fixed here")
    return names, gone


def _against(before: Reading, after: Reading, fixed: Iterable[Finding], new_names: frozenset[str]) -> Iterator[str]:
    """Reasons why the new text is not what was meant."""
    for finding in fixed:
        if any(finding.same_as(other) for other in after.findings):
            yield f"it would not help: {finding.message}"
    for finding in after.findings:
        if finding.severity == "error" and not any(finding.same_as(other) for other in before.findings):
            yield f"it would be wrong in another way: {finding.code} {finding.message}"
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
