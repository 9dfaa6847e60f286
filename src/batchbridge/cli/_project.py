"""The project's own settings: `batchbridge.toml`, or `[tool.batchbridge]` of pyproject.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from batchbridge.cli._output import wrong
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import EQUIVALENT_TO

FAIL_ON = ("error", "unread", "undecided", "warning")
"""The verdicts and findings that make the exit code of `check` other than 0; each includes those before it."""
MAX_FOLDERS = 64
"""Folders of a glob."""
_OF_A_FILE = {
    "framework": str,
    "framework_version": str,
    "world_size": int,
    "dataset_size": int,
    "ignore": list,
    "expect": dict,
}
_OF_ALL: Mapping[str, type] = {**_OF_A_FILE, "select": list, "fail_on": str, "baseline": str, "files": dict}
_WORDS = {str: "a text", int: "a whole number above 0", list: "a list of texts", dict: "a table"}


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """Settings of `folder` and everything in it. settings: of all files. files: glob to what is said of the files that
    match, where a later glob counts more."""

    folder: Path = Path()
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def baseline(self) -> Path | None:
        """The baseline of `check`, if the project says one."""
        return self.folder / self.settings["baseline"] if "baseline" in self.settings else None

    def of(self, file: str | None) -> dict[str, Any]:
        """The settings framework, framework_version, world_size, dataset_size of a file, as far as they are said; and
        the codes to `ignore` in it alone."""
        if file is None or not (self.settings or self.files):
            return {}
        said = {key: self.settings[key] for key in _OF_A_FILE if key in self.settings and key != "ignore"}
        matching = self._matching(file)
        said = {key: value for table in (said, *matching) for key, value in table.items() if key != "expect"}
        return {**said, "ignore": [code for table in matching for code in table.get("ignore", ())]}

    def expected_of(self, file: str | None) -> dict[str, Any]:
        """The expectations of a file's run (`batchbridge.comparing.expectations`); a path as seen from here."""
        tables = [self.settings, *([] if file is None else self._matching(file))]
        said = {name: value for table in tables for name, value in table.get("expect", {}).items()}
        if EQUIVALENT_TO in said:
            said[EQUIVALENT_TO] = os.path.relpath(self.folder / said[EQUIVALENT_TO])
        return said

    def _matching(self, file: str) -> list[Mapping[str, Any]]:
        parts = Path(os.path.relpath(file, self.folder)).parts
        return [table for glob, table in self.files.items() if _matches(parts, tuple(glob.split("/")))]


def project(file: str | None) -> ProjectSettings:
    """The settings of the nearest folder that has some: the one of `file` (None: the working directory), or one above.
    Raises `click.UsageError`, which names the file and the key."""
    try:
        here = Path(file or "?").absolute()
    except OSError:  # the working directory is gone
        return ProjectSettings()
    for folder in here.parents:
        for name, keys in (("batchbridge.toml", ()), ("pyproject.toml", ("tool", "batchbridge"))):
            path = folder / name
            # Not `Path.is_file`, which raises where it may not look.
            if os.path.isfile(path) and (found := _table(path, keys)) is not None:  # noqa: PTH113
                place = ".".join((os.path.relpath(path), *keys))
                said = _checked(found, _OF_ALL, place)
                files = said.pop("files", {})
                tables = {glob: _checked(table, _OF_A_FILE, f"{place}.files.{glob}") for glob, table in files.items()}
                if deep := [glob for glob in tables if glob.count("/") > MAX_FOLDERS]:
                    wrong(f"{place}.files.{deep[0]:.60}: more than {MAX_FOLDERS} folders")
                return ProjectSettings(folder=folder, settings=said, files=tables)
    return ProjectSettings()


def _table(path: Path, keys: tuple[str, ...]) -> Any:
    """The value under `keys` in a TOML file; None: nothing."""
    from batchbridge.reading import documents
    from batchbridge.reading.toml import parse_toml
    from batchbridge.reading.yaml_json import RefusedFile

    name = os.path.relpath(path)
    try:
        text = documents.read_text(path, name)
        if keys and keys[-1] not in text:
            return None
        document = parse_toml(text, name)
    except RefusedFile as refused:
        wrong(f"{name}: {refused.finding.message}")
    if document.problems:
        wrong(f"{name}: {document.problems[0].message}")
    value = document.value
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _checked(table: Any, kinds: Mapping[str, type], place: str) -> dict[str, Any]:
    """A copy of `table`, all of whose keys are known and whose values have their kinds."""
    if not isinstance(table, dict):
        wrong(f"{place}: expected a table")
    for key, value in table.items():
        if key not in kinds:
            import difflib  # most projects have no wrong key

            near = difflib.get_close_matches(key, kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            wrong(f"{place}.{key}: there is no such setting; {hint}")
        fits = isinstance(value, kinds[key]) and not isinstance(value, bool)
        if kinds[key] is int:
            fits = fits and value >= 1
        if kinds[key] is list:
            fits = fits and all(isinstance(item, str) for item in value)
        if not fits:
            wrong(f"{place}.{key} = {value!r:.60}: expected {_WORDS[kinds[key]]}")
        if key == "expect":
            _check_expected(value, f"{place}.expect")
        if key == "fail_on" and value not in FAIL_ON:
            wrong(f"{place}.{key} = {value!r:.60}: expected one of {', '.join(FAIL_ON)}")
    return dict(table)


def _check_expected(table: Mapping[str, Any], place: str) -> None:
    """The check that a run has all that a table expects."""
    from batchbridge.comparing.expectations import expectable, no_such  # most projects expect nothing

    for name, value in table.items():
        if name != EQUIVALENT_TO and name not in expectable():
            wrong(f"{place}.{name}: {no_such(name)}")
        if name == EQUIVALENT_TO and not isinstance(value, str):
            wrong(f"{place}.{name} = {value!r:.60}: expected a text")


@cache
def _matches(parts: tuple[str, ...], glob: tuple[str, ...]) -> bool:
    """Whether a path matches: `**` is any number of folders, `*` and `?` stay within a name."""
    if not glob:
        return not parts
    if glob[0] == "**":
        return any(_matches(parts[cut:], glob[1:]) for cut in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], glob[0]) and _matches(parts[1:], glob[1:])
