"""Settings that known releases declare, as the data that an adapter ships: its `declared.json`.

tests/upstream/declare.py writes that file from wheels and checkouts, with the reader that reads a user's own copy
(`declared_settings`). It holds tables, each of one class or parser: the releases that were read, and of each setting
its rows [first release, last release, kind, default, choices where there are any], both releases by index. What a
setting means here is no upstream's word: an adapter says it, as `Meant`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchbridge.kit.key_table import Key, ValueMapping
from batchbridge.kit.kinds import Kind

OPEN: Final = "(computed)"
"""The default of a setting whose default is no constant."""
AS_DECLARED: Any = ("as declared",)
"""In place of a default: the one that is declared."""


class ShippedTable(NamedTuple):
    """The settings of one class or parser: its releases, oldest first, and the rows of each setting."""

    releases: Sequence[str]
    settings: Mapping[str, Sequence[Sequence[Any]]]

    def of(self, release: str) -> dict[str, Sequence[Any]]:
        """Setting to its kind, default and choices in one release."""
        at = self.releases.index(release)
        return {key: row[2:] for key, rows in self.settings.items() for row in rows if row[0] <= at <= row[1]}

    def only(self, keys: Iterable[str]) -> ShippedTable:
        """The table of some settings alone, in their order."""
        return self._replace(settings={key: self.settings[key] for key in keys})

    def range_of(self, first: int, last: int, begins: Sequence[str] = ()) -> str:
        """The range of versions of a row. begins: the version from which each release counts; empty: its own."""
        begins = begins or self.releases
        if not first and last + 1 == len(begins):
            return ""
        bounds = [f">={shortened(begins[first])}"] if first else []
        return ",".join([*bounds, f"<{shortened(begins[last + 1])}"] if last + 1 < len(begins) else bounds)

    def defaults(self, release: str) -> dict[str, str]:
        """Setting to its default in one release, as text."""
        return {key: repr(row[1]) for key, row in self.of(release).items()}


class Meant(NamedTuple):
    """The meaning of a declared setting.

    field, values: as of a `Key`. kind: what it takes, where its type does not say. default: the value that a default
    that is computed has, or that the framework makes of it. since, until: the first release for which this holds, and
    the first for which it no longer does; empty: the table's ends. before: the releases without the setting do what its
    first default says.
    """

    key: str
    field: str | tuple[str, ...] = ()
    values: ValueMapping | None = None
    kind: Kind | None = None
    default: Any = AS_DECLARED
    since: str = ""
    until: str = ""
    before: bool = False


@lru_cache(maxsize=16)
def shipped(home: str) -> Mapping[str, ShippedTable]:
    """The tables of an adapter's package, by the name of the class or parser."""
    import importlib

    file = Path(str(importlib.import_module(home).__file__)).with_name("declared.json")
    made: Mapping[str, Mapping[str, Any]] = json.loads(file.read_bytes())["tables"]
    return {name: ShippedTable(one["releases"], one["settings"]) for name, one in made.items()}


def rows(
    table: ShippedTable,
    kinds: Mapping[str, Kind],
    meant: Iterable[Meant] = (),
    starts: Sequence[str] = (),
    undeclared: Sequence[Key] = (),
) -> Iterator[Key]:
    """The rows of a table, with what its settings mean. kinds: by the words that the table has for types. starts: the
    version from which each release of the table counts, where these are versions of something else. undeclared: rows
    of releases without a setting."""
    said: dict[str, list[Meant]] = {}
    for one in meant:
        said.setdefault(one.key, []).append(one)
    for key, declared in table.settings.items():
        yield from (row for row in undeclared if row.key == key)
        if key not in said:  # nearly all
            for first, last, name, default, *_ in declared:
                yield Key(key, kinds[name], default, versions=table.range_of(first, last, starts))
            continue
        means, came = said.pop(key), declared[0]
        for one in means:
            if one.before and came[0]:
                kind, default = one.kind or kinds[came[2]], came[3] if one.default is AS_DECLARED else one.default
                yield Key(key, kind, default, one.field, one.values, table.range_of(0, came[0] - 1, starts), fixed=True)
                break
        for first, last, name, default, *_ in declared:
            for begin, stop, mean in _parts(first, last + 1, means, table.releases):
                versions = table.range_of(begin, stop - 1, starts)
                if mean is None:
                    yield Key(key, kinds[name], default, versions=versions)
                    continue
                value = default if mean.default is AS_DECLARED else mean.default
                yield Key(key, mean.kind or kinds[name], value, mean.field, mean.values, versions)
    assert not said, f"no release declares {', '.join(said)}"


def _parts(
    first: int, stop: int, means: Sequence[Meant], releases: Sequence[str]
) -> Iterator[tuple[int, int, Meant | None]]:
    """The span from `first` to before `stop`, cut where what it means changes."""
    at = first
    for one in means:
        begin = max(first, releases.index(one.since)) if one.since else first
        until = min(stop, releases.index(one.until)) if one.until else stop
        if begin >= until:
            continue
        if at < begin:
            yield at, begin, None
        yield begin, until, one
        at = until
    if at < stop:
        yield at, stop, None


def shortened(release: str) -> str:
    """A release without the zero of its last number: 0.18 for 0.18.0."""
    return release[:-2] if release.endswith(".0") and release.count(".") > 1 else release
