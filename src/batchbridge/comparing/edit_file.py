"""A conversion into an existing YAML file of the target's: what must change in it changes, and nothing else.

Keys whose effective value is another one are set. An interpolation is replaced only where it does not follow by itself.
Keys of the file that then still contradict the conversion are removed, as few as will do. The account is made from
reading the edited text back; what it does not confirm is refused.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from batchbridge.comparing.convert import (
    Conversion,
    FieldReport,
    FieldStatus,
    account,
    native_departures,
    without_outside,
)
from batchbridge.comparing.edit_yaml import REMOVED, edit, same, with_line
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading, Source
from batchbridge.errors import CannotEdit
from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.findings import Finding
from batchbridge.reading.detect import DETECTED, certainties
from batchbridge.reading.files import SCRIPTS, load_source
from batchbridge.reading.read import read_again
from batchbridge.reading.yaml_json import parse_yaml

FORM = "yaml"
"""The form that is edited: an adapter that writes it has YAML configurations."""


@dataclass(frozen=True)
class KeyChange:
    """The change of one key of the file: `old` is None where it was not there, `new` where it is gone."""

    key: str
    old: Any
    new: Any
    action: str
    """The action: set (another value), added, or removed."""
    reason: str = ""
    """The reason why a key had to go."""

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class EditedFile:
    """An edited file. conversion: with the edited text and its account. text: the whole new text. kept: keys of the
    file that stay as they are. against: what the file's own settings make another meaning of, though no key could be
    changed against it (the account has these fields too). problems: why nothing can be edited; `text` is None then."""

    path: Path
    conversion: Conversion
    text: str | None
    changes: tuple[KeyChange, ...] = ()
    kept: int = 0
    against: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(self, self.path, many(self.changes, "change"), many(self.problems, "problem"))

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "file": str(self.path),
            "changes": [change.to_dict() for change in self.changes],
            "keys_kept": self.kept,
            "against": list(self.against),
            "problems": list(self.problems),
        }


def convert_into(adapter: Adapter, found: Conversion, path: Path) -> EditedFile:
    """The conversion `found`, to `adapter`'s framework, edited into the YAML file `path`; the file is not written."""
    if found.written is None or found.back is None or found.back.spec is None:
        return EditedFile(path=path, conversion=found, text=None)
    text, problems = _load(path)
    if text is None:
        return _refused(path, found, problems)
    if FORM not in found.written.text:
        forms = ", ".join(found.written.text)
        return _refused(path, found, (f"{adapter.framework} has no YAML configuration; it is written as {forms}",))
    document = parse_yaml(text, str(path))
    if document.problems or not isinstance(document.value, dict | None):
        return _refused(
            path, found, tuple(map(with_line, document.problems)) or ("the file is not a mapping of settings",)
        )
    if document.value is None:
        return _Editing(adapter, found, path, text).whole()
    source = Source(values=document.value, lines=document.lines, path=path)
    if stranger := _stranger(adapter, source):
        return _refused(path, found, (stranger,))
    try:
        return _Editing(adapter, found, path, text).edited()
    except CannotEdit as refused:
        return _refused(path, found, refused.problems)


def _load(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """The text of a YAML file that has no problem, or why it is not edited."""
    if path.suffix.lower() in (*SCRIPTS, ".json"):
        return None, (f"this is a {path.suffix} file; YAML files are edited",)
    problems = [found for found in load_source(path).problems if found.code != EMPTY]
    if problems:
        return None, tuple(with_line(found) for found in problems)
    return decoded(path.read_bytes())[0], ()


EMPTY = "BB005"
"""The loader's finding for files without a mapping; what else they may hold is asked here."""
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def decoded(data: bytes) -> tuple[str, bytes, str]:
    """(text, byte order mark, codec) of a file that the loader has read already."""
    mark, codec = next(((mark, codec) for mark, codec in _MARKS if data.startswith(mark)), (b"", "utf-8"))
    return data[len(mark) :].decode(codec), mark, codec


def save(text: str, path: Path, like: Path | None = None) -> None:
    """Writes `text` in the encoding of the file `like`, by default UTF-8, whole or not at all; a link's target is
    written.

    Raises `OSError`, also where `path` is a device or a pipe: a file in its place would be no device.
    """
    _, mark, codec = decoded(b"" if like is None else like.read_bytes())
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(mark + text.encode(codec))
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _refused(path: Path, found: Conversion, problems: tuple[str, ...]) -> EditedFile:
    return EditedFile(path=path, conversion=found, text=None, problems=problems)


def _stranger(adapter: Adapter, source: Source) -> str | None:
    """The reason why the file is another framework's, where it surely is."""
    own = adapter.detect(source)
    for name, likely in certainties(source, []).items():
        # Frameworks share keys (Open-R1 has TRL's): only a file with next to nothing of its own is a stranger's.
        if name != adapter.framework and likely >= DETECTED and own < likely / 4:
            return f"this is not a file of {adapter.framework}: it reads as {name} ({likely:.0%})"
    return None


_LESS = ("patched", "approximate", "inexpressible")
"""Statuses of fields that mean less and less of the source; every other status means all of it."""


def _less(field: FieldReport, alone: FieldReport) -> bool:
    """Whether a field means less of the source than in the conversion alone."""
    less, least = (_LESS.index(one.status) if one.status in _LESS else -1 for one in (field, alone))
    if less != least:
        return less > least
    if field.field.startswith("topology."):  # where the run is said to run is not a matter of taste
        return not same(field.target, alone.target)
    if field.factor is None or alone.factor is None:
        return False
    return abs(math.log(field.factor or 1e-9)) > abs(math.log(alone.factor or 1e-9)) + 1e-9


_ROUNDS = 4
"""Values that depend on each other by interpolation settle after two."""


class _Editing:
    """One file, one conversion."""

    def __init__(self, adapter: Adapter, found: Conversion, path: Path, text: str) -> None:
        assert found.written is not None
        self.adapter, self.found, self.path, self.text = adapter, found, path, text
        self.refused: set[str] = set()
        """Removed keys that the target itself refuses."""
        # Keys of the written YAML form only: others (an engine that a defaults list names) are said elsewhere.
        said = parse_yaml(found.written.text[FORM], "").value
        named = {key for key, _ in settings_in(said)} if isinstance(said, dict) else set()
        # Model, data and names are the file's own affair.
        named -= {report.target_key for report in found.outside if report.target_key}
        self.wanted = {
            key: value
            for key, value in found.written.values.items()
            if key in named or any(name.startswith(f"{key}.") for name in named)
        }

    @cached_property
    def before(self) -> dict[str, Any]:
        """The settings that stand in the file."""
        return dict(settings_in(parse_yaml(self.text, "").value))

    def whole(self) -> EditedFile:
        """A file without settings: the written configuration behind its comments."""
        assert self.found.written is not None
        newline = "\r\n" if "\r\n" in self.text else "\n"
        kept = self.text.rstrip()
        text = (kept + newline if kept else "") + self.found.written.text[FORM].replace("\n", newline)
        reading = self._read(text)
        if problems := self._errors(reading):
            return _refused(self.path, self.found, tuple(map(with_line, problems)))
        values = parse_yaml(text, "").value
        added = [KeyChange(key, None, value, "added") for key, value in settings_in(values)]
        return self._into(text, reading, added, 0, self.found)

    def edited(self) -> EditedFile:
        """The edited text and its account, or why there is none. Raises `CannotEdit`."""
        changes: dict[str, Any] = {}
        reading = self._read(self.text)
        if self._contradicts(reading):
            changes, reading = self._set(reading)
            changes, reading = self._remove(changes, reading)
            changes, reading = self._needed(changes, reading)
        if problems := self._errors(reading):
            return _refused(self.path, self.found, tuple(map(with_line, problems)))
        listed = [self._change(key, value) for key, value in changes.items()]
        text = edit(self.text, changes) if changes else self.text
        kept = sum(key not in changes for key in self.before)
        return self._into(text, reading, listed, kept, without_outside(self.found))

    def _change(self, key: str, value: Any) -> KeyChange:
        old = self.before.get(key)
        if value is REMOVED:
            refuses = f"{self.found.framework} {self.found.framework_version} refuses the configuration with it"
            why = refuses if key in self.refused else "it contradicts the conversion"
            return KeyChange(key, old, None, "removed", why)
        there = key in self.before or any(other.startswith(f"{key}.") for other in self.before)
        return KeyChange(key, old, value, "set" if there else "added")

    def _into(self, text: str, reading: Reading, changes: list[KeyChange], kept: int, found: Conversion) -> EditedFile:
        assert found.written is not None
        written = dataclasses.replace(found.written, text={FORM: text})
        done = dataclasses.replace(
            found,
            written=written,
            back=reading,
            fields=self._account(reading),
            natively=tuple(native_departures(reading)),
        )
        against = tuple(self._against(reading))
        return EditedFile(
            path=self.path, conversion=done, text=text, changes=tuple(changes), kept=kept, against=against
        )

    def _set(self, reading: Reading) -> tuple[dict[str, Any], Reading]:
        """Every key whose effective value is another one, literal values first: interpolations may follow them."""
        changes: dict[str, Any] = {}
        values = self.before
        for _ in range(_ROUNDS):
            other = {
                key: value
                for key, value in self.wanted.items()
                if key not in changes and not self._means(reading, values, key, value)
            }
            literal = {key: value for key, value in other.items() if "${" not in str(values.get(key))}
            if not other:
                break
            changes |= literal or other
            text = edit(self.text, changes)
            values, reading = dict(settings_in(parse_yaml(text, "").value)), self._read(text)
        return changes, reading

    def _means(self, reading: Reading, values: Mapping[str, Any], key: str, value: Any) -> bool:
        """Whether the file means `value` by `key`, in its words or by the framework's default."""
        if key in reading.native:
            return same(reading.native[key], value)
        return key in values and same(values[key], value)

    def _remove(self, changes: dict[str, Any], reading: Reading) -> tuple[dict[str, Any], Reading]:
        """Removes the keys that contradict, one by one, as long as that helps."""
        tried: set[str] = set()
        while rest := self._contradicts(reading):
            suspects = [key for key in self._suspects(reading) if key not in changes and key not in tried]
            refused = {place.key for one in self._errors(reading) for place in one.where}
            for key in suspects:
                tried.add(key)
                fewer = {**changes, key: REMOVED}
                again = self._read(edit(self.text, fewer))
                if self._contradicts(again) < rest:
                    changes, reading = fewer, again
                    self.refused |= {key} & refused
                    break
            else:
                break
        return changes, reading

    def _needed(self, changes: dict[str, Any], reading: Reading) -> tuple[dict[str, Any], Reading]:
        """Leaves out each new key without which every field comes out as well: the default says it."""
        wanted = self._statuses(reading)
        for key in [key for key in changes if key not in self.before]:
            fewer = {other: value for other, value in changes.items() if other != key}
            try:
                again = self._read(edit(self.text, fewer) if fewer else self.text)
            except CannotEdit:
                continue
            if not self._errors(again) and wanted is not None and self._statuses(again) == wanted:
                changes, reading = fewer, again
        return changes, reading

    def _statuses(self, reading: Reading) -> list[tuple[FieldStatus, Any]] | None:
        return None if reading.spec is None else [(field.status, field.target) for field in self._account(reading)]

    def _suspects(self, reading: Reading) -> Iterator[str]:
        """Keys of the file that stand behind a contradiction: by findings, then by where worse fields come from."""
        mine = [key for key in self.before if key not in self.wanted]
        named: list[str | None] = [place.key for one in self._errors(reading) for place in one.where]
        for field in self._worse(reading):
            origin = reading.provenance.get(field.field)
            if origin is not None:  # what decides something outside the schema, too, stays
                named += [key for key in origin.keys if key == origin.key or self.adapter.decides(key) is None]
        yield from dict.fromkeys(
            key for name in named if name for key in mine if key == name or key.startswith(f"{name}.")
        )

    def _contradicts(self, reading: Reading) -> int:
        """The number of things that stand between the file and the meaning of the conversion."""
        open_run = len(self.found.fields) if reading.spec is None else 0
        return open_run + len(self._errors(reading)) + len(self._worse(reading))

    def _against(self, reading: Reading) -> Iterator[str]:
        for field in self._worse(reading):
            origin = reading.provenance.get(field.field)
            why = f" ({origin.key or origin.detail})" if origin is not None else ""
            yield f"{field.field} is {field.target}{why}, not {field.source}"

    def _errors(self, reading: Reading) -> list[Finding]:
        """Errors and open questions that the conversion alone does not have."""
        known = [] if self.found.back is None else self.found.back.findings
        return [one for one in reading.wrong if not any(one.same_as(other) for other in known)]

    def _worse(self, reading: Reading) -> list[FieldReport]:
        """Fields that mean less of the source than in the conversion alone; a critic's, if the file alone has one."""
        if reading.spec is None:
            return []
        alone = {field.field: field for field in self.found.fields}
        return [
            field for field in self._account(reading) if field.field not in alone or _less(field, alone[field.field])
        ]

    def _account(self, reading: Reading) -> tuple[FieldReport, ...]:
        return tuple(account(self.adapter, self.found.source, reading))

    def _read(self, text: str) -> Reading:
        assert self.found.back is not None
        assert self.found.back.spec is not None
        document = parse_yaml(text, str(self.path))
        source = Source(
            values=document.value or {}, lines=document.lines, path=self.path, problems=tuple(document.problems)
        )
        return read_again(source, self.adapter, self.found.back, self.found.back.spec.topology.world_size)
