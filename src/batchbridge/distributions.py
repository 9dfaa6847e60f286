"""Installed distributions: their versions and entry points, as `importlib.metadata` finds them.

Importing that module brings email, archives, sockets and temporary files, and takes as long as most of a check: what
stands in plain folders of `sys.path` is read here, and all is left to it where anything else is there. Standard library
only.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import importlib.metadata


class Distribution(NamedTuple):
    """A distribution whose metadata stands in a folder, or in a file where an old tool left one."""

    place: str

    @property
    def metadata(self) -> dict[str, str]:
        """Name and Version."""
        for file in ("METADATA", "PKG-INFO", ""):
            if (text := _text(f"{self.place}/{file}")) is not None:
                lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
                return {key: value.strip() for key, _, value in lines if key in ("Name", "Version")}
        return {}


class EntryPoint(NamedTuple):
    """An entry point, as `importlib.metadata.EntryPoint`."""

    name: str
    value: str
    dist: Distribution

    def load(self) -> Any:
        """Imports what it names."""
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found: Any = importlib.import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found


def entry_points(group: str) -> Iterable[EntryPoint] | Iterable[importlib.metadata.EntryPoint]:
    """The entry points of a group; of distributions of one name those of the first on `sys.path`."""
    if (folders := _plain_folders()) is None:
        import importlib.metadata

        return importlib.metadata.entry_points(group=group)
    return _entry_points(folders, group)


def version(name: str) -> str:
    """The version of a distribution. Raises `importlib.metadata.PackageNotFoundError`."""
    if (found := installed(name)) is not None:
        return found
    import importlib.metadata

    return importlib.metadata.version(name)


def installed(name: str) -> str | None:
    """The version of a distribution; None where there is none."""
    if (folders := _plain_folders()) is not None:
        places = (place for called, place in _places(folders) if called == _plain(name))
        return next((Distribution(place).metadata.get("Version") for place in places), None)
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _entry_points(folders: Iterable[str], group: str) -> Iterator[EntryPoint]:
    seen: set[str] = set()
    for name, place in _places(folders):
        if name in seen:
            continue
        seen.add(name)
        text = _text(f"{place}/entry_points.txt")
        if text is None or f"[{group}]" not in text:
            continue
        within = False
        for line in map(str.strip, text.splitlines()):
            if line.startswith("[") and line.endswith("]"):
                within = line == f"[{group}]"
            elif within and line and not line.startswith("#"):
                key, _, value = line.partition("=")
                yield EntryPoint(key.strip(), value.strip(), Distribution(place))


def _plain_folders() -> list[str] | None:
    """The folders of `sys.path`; None where distributions may also be found in another way, in an archive say."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    folders = [path or "." for path in sys.path]
    if any(path.endswith(".egg") or Path(path).is_file() for path in folders):
        return None
    return folders


def _places(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and place of the metadata of every distribution in folders."""
    for folder in folders:
        try:
            yield from _places_in(folder, Path(folder).stat().st_mtime_ns)
        except OSError:
            continue


@lru_cache(maxsize=64)
def _places_in(folder: str, changed: int) -> list[tuple[str, str]]:
    """Names and places of the metadata in one folder. changed: when, in nanoseconds, so that what was found is found
    again as long as nothing is installed."""
    return [
        (_plain(name.rpartition(".")[0].partition("-")[0]), f"{folder}/{name}")
        for name in os.listdir(folder)  # noqa: PTH208 - of some hundred entries, most no distributions
        if name.lower().endswith((".dist-info", ".egg-info"))
    ]


def _plain(name: str) -> str:
    """A name as distributions compare them: `Foo.bar`, `foo-bar` and `foo__bar` are one."""
    return "_".join(filter(None, name.lower().replace("-", "_").replace(".", "_").split("_")))


def _text(file: str) -> str | None:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - a hundred files, most not there
            return opened.read()
    except (OSError, ValueError):
        return None
