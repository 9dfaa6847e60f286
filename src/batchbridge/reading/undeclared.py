"""Keys of a configuration that its release does not declare, held against the other releases.

Its own file: `check` asks for it where a version is named, and imports nothing that compares readings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading
from batchbridge.reading.read import read

_SIZES = ("rollout.", "optimizer_step.", "topology.", "micro_batch.")


def undeclared(adapter: Adapter, reading: Reading) -> tuple[str, ...]:
    """The keys of a configuration that the release of its reading does not declare, refused or dropped."""
    found = (one for one in reading.findings if one.code in adapter.undeclared)
    return tuple(dict.fromkeys(str(place.key) for one in found for place in one.where if place.key is not None))


def refused_sizes(adapter: Adapter, reading: Reading) -> Iterator[str]:
    """The undeclared keys that are refused, and not dropped silently, and that stand for one that decides the sizes of
    batches: these are defaults in their place."""
    sizes = {*deciding(reading)}
    for one in reading.findings:
        if (
            one.code in adapter.undeclared
            and one.severity == "error"
            and any(sizes & {*fix.changes} for fix in one.fixes)
        ):
            yield from (place.key for place in one.where if place.key is not None)


def replaced(adapter: Adapter, reading: Reading) -> frozenset[str]:
    """The undeclared keys whose names the framework has for something that another place says: a recipe's
    `num_processes`, which its program drops, where the launcher is told how many processes it starts."""
    found = [one for one in reading.findings if one.code in adapter.undeclared]
    dropped = {where.key: (where.file, where.line) for one in found for where in one.where if where.key is not None}
    said = {key: reading.given[key] for key in dropped.keys() & reading.given.keys()}
    return frozenset(key for key, where in said.items() if (where.file, where.line) != dropped[key])


def deciding(reading: Reading) -> Iterator[str]:
    """The native keys that the sizes of its batches come from."""
    for path, origin in reading.provenance.items():
        if path.startswith(_SIZES):
            yield from origin.keys


def declared_elsewhere(source: object, adapter: Adapter, reading: Reading, **said: Any) -> dict[str, bool]:
    """The undeclared keys of a reading that another release declares, and whether they decide the sizes of its batches
    in the nearest one that declares them and reads the whole. said: arguments of `read`.

    The nearest releases are asked first, and no more of them than are needed: a key that none declares needs all.
    """
    left = dict.fromkeys(undeclared(adapter, reading))
    found: dict[str, bool] = {}
    for version in _nearest_first(adapter.releases, reading.framework_version):
        if not left:
            break
        other = read(source, framework=adapter.framework, version=version, **said)
        lacking, sizes = {*undeclared(adapter, other)}, {*deciding(other)}
        for key in [key for key in left if key not in lacking]:
            found[key] = key in sizes
            if other.spec is not None:
                del left[key]
    return found


def _nearest_first(releases: tuple[str, ...], version: str | None) -> list[str]:
    """Releases by how many stand between them and a version, of two the newer first."""
    here = releases.index(version) if version in releases else len(releases)
    return sorted(releases, key=lambda one: (abs(releases.index(one) - here), -releases.index(one)))
