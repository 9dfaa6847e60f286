"""The nearest specification that a framework's configuration can say: a refusal's ways out, followed.

Each problem of a refusal carries the values that the framework takes (`Problem.nearest`); one way out of every problem
is taken at once, and the result is written again. Where a problem carries none that helps, the same run in other units
is tried (`other_words`), and last the framework's defaults for the fields that are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from batchbridge.comparing.other_words import (
    LENGTHS,
    WARM_UP,
    ProblemTuple,
    cold,
    cold_starts,
    in_other_units,
    named,
    preferred,
    replaced,
    values_of,
)
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Source, Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.writing import UNKNOWN
from batchbridge.meaning.derived import derive
from batchbridge.meaning.spec import Spec

MAX_WRITES = 24
"""Most specifications that are written to find the nearest."""


def write(adapter: Adapter, spec: Spec, version: str | None) -> Written | ProblemTuple:
    """The settings that `adapter` writes for `spec`, or the problems of its refusal."""
    try:
        return adapter.write(spec, version)
    except CannotWrite as refused:
        return refused.problems


class Projection(NamedTuple):
    """The settings of the nearest specification and that one, None where none was found, and the refusal of the one
    asked for."""

    written: Written | None
    refused: ProblemTuple
    spec: Spec | None = None


def project(adapter: Adapter, spec: Spec, version: str | None, dataset_size: int | None) -> Projection:
    """The nearest specification that an adapter writes; it follows the refusals' ways out, one of each at a time."""
    defaults: Spec | None = None
    refused: ProblemTuple = ()
    tried: set[str] = set()
    # A framework that is told no warm-up in one unit may have a default in the other.
    current = spec.replace(**dict.fromkeys(WARM_UP, 0.0)) if cold(spec) else spec
    for count in range(MAX_WRITES):
        result = write(adapter, current, version)
        if isinstance(result, Written):
            return Projection(result, refused, current)
        if not count:
            refused = tuple(one for one in result if current == spec or not {*one.fields} <= {*WARM_UP})
            defaults = _defaults(adapter, spec, version, dataset_size)
        changed = _followed(current, result, defaults, dataset_size, tried)
        if changed is None:
            break
        current = changed
    return Projection(None, refused)


def in_usual_form(adapter: Adapter, spec: Spec, found: Spec, written: Written, version: str | None) -> Written:
    """The settings that are written for `found`, without the carried values for which alone it has another form than
    the usual: a schedule must not decide which engine trains. `found`: what `written`, the nearest to `spec`, means."""
    own, said = found.values, spec.values
    carried = {path: value for path, value in own.items() if path.startswith("carried.")}
    filled = [path for path, value in said.items() if value is None and path in own and path.startswith(UNKNOWN)]
    kept = found.replace(**dict.fromkeys([*carried, *filled]))
    usual = write(adapter, kept, version)
    if not isinstance(usual, Written) or _keys(usual) <= _keys(written):
        return written
    form = _keys(usual)
    # Numbers have one form; it is words that have others, and mostly the schedule.
    given = [path for path, value in carried.items() if said.get(path) is not None and value is not None]
    words = [path for path in given if isinstance(carried[path], str)]
    for paths in ([path for path in given if path not in words], *([word] for word in words)):
        more = kept.replace(**{path: carried[path] for path in paths})
        result = write(adapter, more, version)
        if isinstance(result, Written) and form <= _keys(result):
            kept, usual = more, result
    return usual


def _keys(written: Written) -> set[str]:
    return {key for key, _ in settings_in(written.values)}


def _followed(
    current: Spec, problems: ProblemTuple, defaults: Spec | None, dataset_size: int | None, tried: set[str]
) -> Spec | None:
    """`current` with one way out of each problem, none of which was tried before; None where there is none left."""
    changes: dict[str, Any] = {}
    for problem in problems:
        if _overlap(changes, problem.fields):
            continue  # the way out of another problem may end it
        for way in _ways(problem, current, defaults, dataset_size):
            mark = repr(sorted(way.items(), key=lambda one: one[0]))
            if mark not in tried and _moves(current, way, problem.fields) and not _overlap(changes, way):
                tried.add(mark)
                changes |= way
                break
    if changes:
        return replaced(current, changes)
    if defaults is None or "defaults" in tried:
        return None
    tried.add("defaults")
    changed = replaced(current, values_of(defaults, named(problems)))
    return None if changed == current else changed


def _overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether fields, or groups of them ("micro_batch."), have one in common."""
    return any(one.startswith(other) or other.startswith(one) for one in some for other in others)


def _moves(current: Spec, way: Mapping[str, Any], fields: tuple[str, ...]) -> bool:
    """Whether a way keeps an end of the run, and changes one of the fields of a problem, or how steps are cut into
    micro-batches, which any size may depend on; or anything where the problem has no fields."""
    changed = replaced(current, way)
    if changed is None or changed == current:
        return False
    now, then = current.values, changed.values
    if any(now.get(path) is not None for path in LENGTHS) and all(then.get(path) is None for path in LENGTHS):
        return False  # a run that ends is never turned into an endless one
    its = (*fields, "micro_batch.")
    return not fields or any(now.get(path) != then.get(path) for path in {**now, **then} if path.startswith(its))


def _ways(
    problem: Problem, current: Spec, defaults: Spec | None, dataset_size: int | None
) -> Iterator[Mapping[str, Any]]:
    units = [*in_other_units(current, problem.fields, defaults, dataset_size)]
    steps = derive(current, dataset_size)["total_optimizer_steps"]
    if len(current.horizon.lengths) > 1 and steps is not None:  # which one ends the run, no refusal knows
        yield from units
    yield from cold_starts(current, problem.fields)
    yield from preferred(problem.nearest, current, defaults)
    yield from units


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
