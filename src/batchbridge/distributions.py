"""Versions and entry points of distributions, as `importlib.metadata` gives them, without importing it.

It brings a parser of mails and one of zip archives, which is a tenth of all that `batchbridge check` takes. Here the
files are read that every installer writes into a folder on `sys.path`. Whatever else can hold distributions (archives,
eggs, finders of other packages) and every line that is not plainly `name = module` is left to `importlib.metadata`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class Distribution(Protocol):
    """What says who installed a plugin."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


class EntryPoint(Protocol):
    """What `importlib.metadata.EntryPoint` has too."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str: ...

    @property
    def dist(self) -> Distribution | None: ...

    def load(self) -> Any: ...


def entry_points(group: str) -> Iterable[EntryPoint]:
    """The entry points of `group` of every installed distribution, of which the first on `sys.path` counts."""
    try:
        return list(_read(group))
    except _Unusual:
        import importlib.metadata

        return importlib.metadata.entry_points(group=group)


def version(name: str) -> str | None:
    """The version of an installed distribution; None where there is none."""
    try:
        wanted = _normalised(name)
        for folder in _folders():
            for found, info in _infos(folder):
                if found == wanted:
                    return _distribution(info).version
        return None
    except _Unusual:
        import importlib.metadata

        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None


class _Unusual(Exception):
    """Something that only `importlib.metadata` reads."""


@dataclass(frozen=True)
class _Distribution:
    name: str
    version: str


@dataclass(frozen=True)
class _EntryPoint:
    name: str
    value: str
    dist: _Distribution

    def load(self) -> Any:
        return importlib.import_module(self.value)


def _read(group: str) -> Iterator[_EntryPoint]:
    seen: set[str] = set()
    for folder in _folders():
        for name, info in _infos(folder):
            if name not in seen:
                seen.add(name)
                yield from _points(info, group)


def _folders() -> Iterator[str]:
    """The folders on `sys.path`, as `importlib` looks through them."""
    for finder in sys.meta_path:
        if hasattr(finder, "find_distributions") and getattr(finder, "__name__", "") != "PathFinder":
            raise _Unusual
    for entry in sys.path:
        if not isinstance(entry, str) or entry.lower().endswith(".egg"):
            raise _Unusual
        folder = entry or "."
        if os.path.isdir(folder):
            yield folder
        elif os.path.exists(folder):
            raise _Unusual  # an archive


def _infos(folder: str) -> Iterator[tuple[str, str]]:
    """The normalised name and the metadata's folder of each distribution in `folder`."""
    try:
        children = os.listdir(folder)
    except OSError:
        raise _Unusual from None
    for child in children:
        if child.lower().endswith((".dist-info", ".egg-info")):
            stem, suffix = os.path.splitext(child)
            if suffix != suffix.lower():
                raise _Unusual
            yield _normalised(stem.partition("-")[0]), os.path.join(folder, child)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _points(info: str, group: str) -> Iterator[_EntryPoint]:
    try:
        with open(os.path.join(info, "entry_points.txt"), "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        raise _Unusual from None
    if group.encode() not in content:
        return
    dist: _Distribution | None = None
    section = ""
    for line in map(str.strip, content.decode().splitlines()):
        if line.startswith("["):
            section = line
        elif section == f"[{group}]" and line and not line.startswith("#"):
            name, _, value = (part.strip() for part in line.partition("="))
            if not re.fullmatch(r"[\w.]+", value):
                raise _Unusual
            dist = dist or _distribution(info)
            yield _EntryPoint(name, value, dist)
        elif group in section and section != f"[{group}]":
            raise _Unusual


def _distribution(info: str) -> _Distribution:
    """Name and version from the head of the metadata."""
    said: dict[str, str] = {}
    try:
        with open(os.path.join(info, "METADATA"), encoding="utf-8") as file:
            for line in file:
                key, colon, value = line.rstrip("\r\n").partition(":")
                if not colon:
                    break  # the head ends, or a line of it goes on
                said.setdefault(key.lower(), value.lstrip(" \t"))
    except (OSError, ValueError):
        raise _Unusual from None
    if not said.get("name") or not said.get("version"):
        raise _Unusual
    return _Distribution(said["name"], said["version"])
