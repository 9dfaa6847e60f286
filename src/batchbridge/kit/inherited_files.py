"""Configuration files that inherit: a key names other files, and what a file says itself counts before them.

Each parent's paths are relative to its own folder; of several, a later one counts before an earlier. Mappings are
merged, everything else is replaced. Files are read with the loader's bounds, and nothing in them is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Source
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding, Where
from batchbridge.reading.files import load_source

MAX_FILES = 32
"""Files of one chain, so that one that names itself ends."""


@dataclass(frozen=True, kw_only=True)
class ComposedSource(Source):
    """A source of several files. files: native key to the file that `lines` counts in; `path` where it has none."""

    files: Mapping[str, str] = field(default_factory=dict)


def compose(
    source: Source,
    inherits: str,
    code: str,
    *,
    replaces: str = "",
    bases: Mapping[str, Mapping[str, Any]] | None = None,
) -> ComposedSource:
    """`source` with the files that its key `inherits` names, and what is wrong with them as findings of `code`.

    replaces: a key that, where it is true in a mapping of the file's first level, makes it replace the parent's.
    bases: values of files that the framework ships, by name, for a file that is not there.
    """
    chain = _Chain(inherits, code, replaces, bases or {})
    made = {"values": chain.merged(source, 1), "lines": chain.lines, "files": chain.files}
    return ComposedSource(**{**vars(source), **made, "problems": (*source.problems, *chain.problems)})


class _Chain:
    def __init__(self, inherits: str, code: str, replaces: str, bases: Mapping[str, Mapping[str, Any]]) -> None:
        self.inherits, self.code, self.replaces, self.bases = inherits, code, replaces, bases
        self.lines: dict[str, int] = {}
        self.files: dict[str, str] = {}
        self.problems: list[Finding] = []
        self.read = 0

    def merged(self, source: Source, depth: int) -> dict[str, Any]:
        values = dict(source.values)
        named = values.pop(self.inherits, None)
        result: dict[str, Any] = {}
        for name in named if isinstance(named, list) else [] if named is None else [named]:
            _merge(result, self._parent(name, source, depth), self.replaces)
        if source.path is not None:
            for key, line in source.lines.items():
                self.lines[key], self.files[key] = line, str(source.path)
        _merge(result, values, self.replaces)
        return result

    def _parent(self, name: Any, source: Source, depth: int) -> dict[str, Any]:
        self.read += 1
        if depth >= MAX_FILES or self.read > MAX_FILES:
            return self._refuse(name, source, f"more than {MAX_FILES} files inherit from each other")
        if not isinstance(name, str) or not name or "\0" in name:
            return self._refuse(name, source, f"{self.inherits} names files, as text")
        file = (source.path.parent if source.path else Path()) / name
        if not file.is_file() and file.name in self.bases:
            return dict(self.bases[file.name])
        if source.path is None:
            return self._refuse(name, source, "a file that inherits is read from its own place")
        parent = load_source(file)
        wrong = [found for found in parent.problems if found.severity == "error"]
        if wrong:
            return self._refuse(name, source, wrong[0].message)
        return self.merged(parent, depth + 1)

    def _refuse(self, name: Any, source: Source, why: str) -> dict[str, Any]:
        line = source.lines.get(self.inherits)
        where = Where(self.inherits, str(name)[:60], str(source.path) if source.path and line else None, line)
        self.problems.append(
            Finding(self.code, "error", "config", f"{self.inherits}: {str(name)[:60]}: {why}", (where,))
        )
        return {}


def _merge(below: dict[str, Any], above: Mapping[str, Any], replaces: str = "") -> None:
    """`above` into `below`, in place."""
    for key, value in above.items():
        if isinstance(value, Mapping):
            own = dict(value)
            replace = bool(replaces) and bool(own.pop(replaces, False))
            under = below.get(key)
            below[key] = dict(under) if isinstance(under, Mapping) and not replace else {}
            _merge(below[key], own)
        else:
            below[key] = value
