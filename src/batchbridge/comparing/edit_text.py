"""Other settings in the text of a user's file, whatever kind of file it is: everything else in it stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.comparing.edit_words import edit_call, edit_script
from batchbridge.comparing.edit_yaml import REMOVED, edit, rename
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotEdit
from batchbridge.reading.files import SCRIPTS

YAML = frozenset({".yaml", ".yml"})
PROGRAM = ".py"
EDITED = YAML | SCRIPTS | {PROGRAM}
"""Suffixes of files that are edited where they lie."""


def lines_in(reading: Reading, path: Path) -> dict[str, int]:
    """The lines of the settings that stand in the file `path` itself, and not in one that it names."""
    return {
        key: place.line
        for key, place in reading.places.items()
        if place.line is not None and place.file is not None and Path(place.file) == path
    }


def changed_text(
    text: str, path: Path, reading: Reading, changes: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> str:
    """`text` with `changes` in it, None for a setting that goes, and settings under other names (`names`: old to new).

    path: whose text it is. reading: what it means. Whoever changes a text reads the result back. Raises `CannotEdit`.
    """
    suffix, names = path.suffix.lower(), names or {}
    here = lines_in(reading, path)
    if suffix in SCRIPTS:
        pairs = {key: (reading.native.get(key), value) for key, value in changes.items()}
        return edit_script(text, pairs, here, names)[0]
    if suffix == PROGRAM:
        return edit_call(text, changes, here, names)
    if suffix in YAML or suffix == ".json":
        text = rename(text, names) if names else text
        return edit(text, {key: REMOVED if value is None else value for key, value in changes.items()})
    raise CannotEdit(f"a {suffix.removeprefix('.')} text is not edited")
