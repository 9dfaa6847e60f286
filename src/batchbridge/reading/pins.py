"""The version of a framework that the repository of a configuration pins: `trl==0.18.0` in its setup.py, say.

Files are searched as text, and nothing in them is run. Only exact pins count, and only where those of a folder agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

FILES = (
    *("uv.lock", "poetry.lock", "requirements.txt", "requirements-dev.txt", "pyproject.toml", "setup.py", "setup.cfg"),
    "Dockerfile",
)
"""Files that may pin a version, named one by one: folders that the user did not name are not listed."""
LEVELS = 8
"""Folders that are searched: the configuration's, and those above it."""
MAX_BYTES = 4 << 20


class VersionPin(NamedTuple):
    """A version, and the place that pins it, for a person."""

    version: str
    place: str


def pinned(
    beside: Path, distribution: str | None, checkout: tuple[str, ...] = (), releases: Collection[str] = ()
) -> VersionPin | None:
    """The pin of the nearest folder above the file `beside` for `distribution`; None where it pins nothing, or two.

    checkout: files that a checkout of the framework has, seen from its root; the first says the version that it calls
    itself, which counts where it is one of `releases`, or looks like a release.
    """
    for folder in beside.resolve().parents[:LEVELS]:
        found = [pin for name in FILES for pin in _pins(folder / name, distribution)] if distribution else []
        found = found or _own(folder, checkout, releases)
        if found:
            return found[0] if len({pin.version for pin in found}) == 1 else None
    return None


def _own(folder: Path, checkout: tuple[str, ...], releases: Collection[str]) -> list[VersionPin]:
    """The release that a checkout of the framework calls itself. A state between two releases, or after the last, has
    settings of neither."""
    try:
        if not checkout or not all((folder / name).is_file() for name in checkout):
            return []
        file = folder / checkout[0]
        text = file.read_text(encoding="utf-8") if file.stat().st_size < MAX_BYTES else ""
    except (OSError, ValueError):
        return []
    said = re.search(r'^__version__ = "([^"\n]+)"', text, re.MULTILINE)
    version = said[1] if said else text.strip()
    known = version in releases or re.fullmatch(r"[0-9]+(\.[0-9]+)*", version)
    line = text.count("\n", 0, said.start()) + 1 if said else 1
    return [VersionPin(version, f"{checkout[0]}:{line}")] if known else []


def _pins(file: Path, distribution: str) -> list[VersionPin]:
    name = re.escape(distribution)
    locked = rf'^name = "{name}"\n(?:.*\n)?version = "([^"]+)"'
    exact = rf"^[^#\n]*?(?<![\w.-]){name}(?:\[[^\]\n]*\])?\s*==\s*([0-9][\w.+]*)"
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            return []
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    found = re.finditer(locked if file.suffix == ".lock" else exact, text, re.MULTILINE)
    return [VersionPin(match[1], f"{file.name}:{text.count(chr(10), 0, match.start(1)) + 1}") for match in found]
