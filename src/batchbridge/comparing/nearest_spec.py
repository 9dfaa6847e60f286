"""The nearest specification that a framework's configuration can say: a refusal's ways out, followed.

Each problem of a refusal carries the values that the framework takes (`Problem.nearest`); one way out of every problem
is taken at once, and the result is written again. Where a problem carries none, the ways are those that its fields have
whatever the framework: `nearest_moves`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from batchbridge.comparing.nearest_moves import Problems, moves, named, preferred, replaced, spelt, values_of
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Source, Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.meaning.spec import Spec

MAX_WRITES = 24
"""Most specifications that are written to find the nearest."""


def write(adapter: Adapter, spec: Spec, version: str | None) -> Written | Problems:
    """The settings that `adapter` writes for `spec`, or the problems of its refusal."""
    try:
        return adapter.write(spec, version)
    except CannotWrite as refused:
        return refused.problems


class Projection(NamedTuple):
    """The settings of the nearest specification, None where none was found, and the refusal of the one asked for."""

    written: Written | None
    refused: Problems


def project(adapter: Adapter, spec: Spec, version: str | None, dataset_size: int | None) -> Projection:
    """The nearest specification that an adapter writes; it follows the refusals' ways out, one of each at a time."""
    defaults: Spec | None = None
    refused: Problems = ()
    tried: set[str] = set()
    current = spec
    for count in range(MAX_WRITES):
        result = write(adapter, current, version)
        if isinstance(result, Written):
            return Projection(result, refused)
        if not count:
            refused, defaults = result, _defaults(adapter, spec, version, dataset_size)
        changed = _followed(current, result, defaults, dataset_size, tried)
        if changed is None:
            break
        current = changed
    return Projection(None, refused)


def _followed(
    current: Spec, problems: Problems, defaults: Spec | None, dataset_size: int | None, tried: set[str]
) -> Spec | None:
    """`current` with one way out of each problem, none of which was tried before; None where there is none left."""
    changes: dict[str, Any] = {}
    for problem in problems:
        if _overlap(changes, problem.fields):
            continue  # the way out of another problem may end it
        for way in _ways(problem, current, defaults, dataset_size):
            mark = repr(sorted(way.items(), key=lambda one: one[0]))
            changed = replaced(current, way)
            if mark not in tried and changed not in (None, current) and not _overlap(changes, way):
                tried.add(mark)
                changes |= way
                break
    if changes:
        return replaced(current, changes)
    if defaults is None or "defaults" in tried:
        return None
    tried.add("defaults")
    return replaced(current, values_of(defaults, named(problems)))


def _overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether fields, or groups of them ("micro_batch."), have one in common."""
    return any(one.startswith(other) or other.startswith(one) for one in some for other in others)


def _ways(
    problem: Problem, current: Spec, defaults: Spec | None, dataset_size: int | None
) -> Iterator[Mapping[str, Any]]:
    yield from spelt(current, problem.fields)
    yield from preferred(problem.nearest, current, defaults)
    yield from moves(current, named((problem,)), defaults, dataset_size)


def _defaults(adapter: Adapter, spec: Spec, version: str | None, dataset_size: int | None) -> Spec | None:
    """The specification of the framework where it is told nothing but the world size."""
    offered = (version, adapter.newest_version or None, *_versions_in(adapter.versions))
    for one in dict.fromkeys(offered):
        context = Context(framework_version=one, world_size=spec.topology.world_size, dataset_size=dataset_size)
        try:
            found = adapter.read(Source(), context).spec
        except Exception:  # an adapter that cannot read an empty configuration has no defaults to offer
            continue
        if found is not None:
            return found
    return None


def _versions_in(specifier: str) -> list[str]:
    """Versions that a specifier names or ends before, the newest first: an adapter has defaults there."""
    found = []
    for sign, text in re.findall(r"([><=~!]=?)\s*(\d+(?:\.\d+)*)", specifier):
        numbers = [int(part) for part in text.split(".")]
        if sign == "<" and numbers[-1]:
            found += [[*numbers[:-1], numbers[-1] - 1], [*numbers[:-1], numbers[-1] - 1, 0]]
        elif sign not in ("<", ">", "!="):
            found.append(numbers)
    return [".".join(map(str, numbers)) for numbers in sorted(found, reverse=True)]
