"""The files of a Python program beside its own: modules that it imports, and files of settings that it opens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batchbridge.reading.arguments import near_file
from batchbridge.reading.documents import is_root, parse_document, read_text
from batchbridge.reading.yaml_json import RefusedFile
from pyread import UnknownValue

LEVELS = 3
"""Folders above a program in which a module or a file of settings is looked for."""
MOST_BYTES_OF_A_FILE = 1 << 20
"""Largest module or file of settings that a program is followed into (bytes)."""
_GENERATED = re.compile(r"(^|\.)(Unsloth\w+|unsloth_compiled_cache)(\.|$)")
"""Modules that Unsloth writes beside a program: they are Unsloth's code, not the program's."""
_SETTINGS = (".yaml", ".yml", ".json", ".toml")


def module_of(name: str, beside: Path) -> tuple[str, str] | None:
    """(text, file) of a module that Python would find beside the program, or in a folder above it; None where it
    is none, or someone else's."""
    if _GENERATED.search(name):
        return None
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.lstrip(".").split(".") if part]
    folder = beside.parent
    for _ in range(level - 1):
        folder = folder.parent
    for place in [folder] if level else [folder, *_above(folder, parts[0]), folder / "src"]:
        below = place.joinpath(*parts)
        for candidate in (below.with_suffix(".py") if parts else None, below / "__init__.py"):
            if candidate is not None and (text := text_of(candidate)) is not None:
                return text, str(candidate)
    return None


def _above(folder: Path, package: str) -> Iterator[Path]:
    """The folders above one, up to the root of its repository, in which Python may have been told to look for a
    package; where the folder lies in one of the package's own name, only the folder in which a project begins."""
    within = folder
    for place in folder.parents[:LEVELS]:
        if is_root(within):
            return
        if within.name != package or any((place / name).exists() for name in _PROJECT):
            yield place
        within = place


_PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""Names in a folder that is on Python's path by being installed or by being where programs are started."""


def text_of(file: Path) -> str | None:
    """The text of a module; None where it is missing, too large, or no text."""
    try:
        if not file.is_file() or file.stat().st_size > MOST_BYTES_OF_A_FILE:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def settings_of(named: str, path: Path) -> Any:
    """The settings in a file that the program opens, as seen from where it is started, or from its own folder."""
    found = near_file(named, path)
    if found is None or (suffix := found.suffix.lower()) not in _SETTINGS:
        return None
    try:
        document = parse_document(read_text(found, str(found)), suffix, str(found))
    except RefusedFile:
        return None
    if not isinstance(document.value, dict) or any(one.severity == "error" for one in document.problems):
        return None
    return _as_read(document.value)


def _as_read(value: Any) -> Any:
    """A value of a settings file; what is interpolated, or missing, is unknown."""
    if isinstance(value, Mapping):
        return {key: _as_read(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_read(one) for one in value]
    if isinstance(value, str) and ("${" in value or value == "???"):
        return UnknownValue(value, (value,))
    return value
