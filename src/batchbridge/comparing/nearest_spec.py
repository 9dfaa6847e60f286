"""The nearest specification that a framework's configuration can say: which fields are moved, and where to.

A refusal names its fields; they are set to the nearest value that the framework takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge.comparing.nearest_moves import (
    ALONE,
    LENGTHS,
    RANKED,
    SIZES,
    TOGETHER,
    Problems,
    any_field,
    moves,
    named,
    replaced,
    splits,
    value_of,
    values_of,
)
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Source, Written
from batchbridge.errors import CannotWrite
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.writing import UNKNOWN
from batchbridge.meaning.spec import Spec

_SCHEDULE = "carried.lr_schedule"
MAX_WRITES = 500
"""Attempts to find an expressible neighbour; none is needed where the target can say everything."""


def write(adapter: Adapter, spec: Spec, version: str | None) -> Written | Problems:
    """The settings that `adapter` writes for `spec`, or the problems of its refusal."""
    try:
        return adapter.write(spec, version)
    except CannotWrite as refused:
        return refused.problems


class Search:
    """The search for the nearest specification that an adapter writes; bounded by `MAX_WRITES`."""

    def __init__(self, adapter: Adapter, version: str | None, dataset_size: int | None) -> None:
        self.adapter, self.version, self.dataset_size = adapter, version, dataset_size
        self.refused: Problems = ()
        self._left = MAX_WRITES
        self._moved: set[str] = set()
        self._seen: set[Spec] = set()

    def nearest(self, spec: Spec) -> Written | None:
        """The settings written for `spec` or its nearest neighbour; None where no neighbour is written either."""
        spec, result = self._first(spec)
        if isinstance(result, Written):
            return result
        self.refused = result
        defaults = self._defaults(spec)
        current, reset, back = spec, 0, 0
        before: list[tuple[Spec, Problems]] = []
        while not isinstance(result, Written) and self._left > 0:
            self._seen.add(current)
            step = self._improve(current, result, moves(current, named(result), defaults, self.dataset_size))
            if step is None:
                # The refusal names no field that helps: each one, the least effect first.
                step = self._improve(current, result, any_field(current, defaults))
            if step is None and defaults is not None and reset < _RESETS:
                # No single change helps: everything that is named goes to the target's defaults at once.
                reset += 1
                changed = replaced(current, values_of(defaults, named(result)))
                step = None if changed is None or changed == current else (changed, self._try(changed))
            if step is None and before and back < _BACK:
                # This way leads nowhere, for all its fewer problems: another one from the place before.
                back += 1
                current, result = before.pop()
                continue
            if step is None:
                break
            before.append((current, result))
            current, result = step
        if isinstance(result, Written):
            return self._restored(spec, current, result)
        return None if defaults is None else self._from_defaults(spec, defaults)

    def in_usual_form(self, spec: Spec, found: Spec, written: Written) -> Written:
        """The settings that are written for `found`, without the carried values for which alone it has another form
        than the usual.

        A schedule must not decide which engine trains. `found`: what `written`, the nearest to `spec`, is read as.
        """
        own = found.values
        every = [path for path in own if path.startswith("carried.")]
        carried = {path: own[path] for path in every if value_of(spec, path) is not None}
        filled = [
            path for path, value in spec.values.items() if value is None and path in own and path.startswith(UNKNOWN)
        ]
        kept = found.replace(**dict.fromkeys([*every, *filled]))
        usual = self._try(kept)
        if not isinstance(usual, Written) or _keys(usual) <= _keys(written):
            return written
        plain = _keys(usual)
        # Numbers first, all at once where that keeps the form: it is words that have other forms, and mostly the
        # schedule. Else halves of them.
        words = [path for path, value in carried.items() if isinstance(value, str) and path != _SCHEDULE]
        numbers = [path for path in carried if path not in (_SCHEDULE, *words)]
        left = [[_SCHEDULE] if _SCHEDULE in carried else [], words, numbers]
        while left:
            paths = left.pop()
            with_these = kept.replace(**{path: carried[path] for path in paths})
            one = self._try(with_these)
            if isinstance(one, Written) and plain <= _keys(one):
                kept, usual = with_these, one
            elif len(paths) > 1:
                left += [paths[len(paths) // 2 :], paths[: len(paths) // 2]]
        return usual

    def _restored(self, spec: Spec, current: Spec, written: Written) -> Written:
        """`written`, with every single field that need not have been moved on the way back at its value in `spec`."""
        for paths in (*((path,) for path in ALONE), LENGTHS):
            current, taken = self._take(current, values_of(spec, paths))
            written = taken or written
        return written

    def _first(self, spec: Spec) -> tuple[Spec, Written | Problems]:
        """`spec` itself where the target takes it, else a spelling of the same that is nearest; and what became of it.

        No warm-up at all has several spellings, and a framework has defaults for either unit. Which parameters are left
        out of a weight decay of 0 means nothing, and must not decide between a framework's engines.
        """
        steps, ratio = spec.carried.warmup_steps, spec.carried.warmup_ratio
        spellings: list[dict[str, Any]] = [{}]
        if not steps and not ratio and (steps, ratio) != (None, None):
            zeros = dict.fromkeys(((0.0, 0.0), (steps, ratio), (0.0, None), (None, 0.0)))
            spellings = [{"carried.warmup_steps": one, "carried.warmup_ratio": other} for one, other in zeros]
        warmups = len(spellings)
        if spec.carried.weight_decay == 0 and spec.carried.weight_decay_excludes is not None:
            spellings += [{**spelling, "carried.weight_decay_excludes": None} for spelling in spellings]
        tried = []
        for spelling in spellings:
            result = self._try(spelt := spec.replace(**spelling))
            if isinstance(result, Written):
                return spelt, result
            tried.append((spelt, result))
        # The last ones leave most to the target; how many problems there are compares only spellings of one thing.
        return min(tried[len(tried) - warmups :], key=lambda one: len(one[1]))

    def _try(self, spec: Spec) -> Written | Problems:
        self._left -= 1
        return write(self.adapter, spec, self.version)

    def _defaults(self, spec: Spec) -> Spec | None:
        """The specification of the framework where it is told nothing but the world size."""
        world, prompts = spec.topology.world_size, self.dataset_size
        offered = (self.version, self.adapter.newest_version or None, *_versions_in(self.adapter.versions))
        for version in dict.fromkeys(offered):
            context = Context(framework_version=version, world_size=world, dataset_size=prompts)
            try:
                found = self.adapter.read(Source(), context).spec
            except Exception:  # an adapter that cannot read an empty configuration has no defaults to offer
                continue
            if found is not None:
                return found
        return None

    def _improve(
        self, current: Spec, problems: Problems, moves: Iterator[dict[str, Any]]
    ) -> tuple[Spec, Written | Problems] | None:
        """The first of `moves` after which there are fewer problems.

        Where there is none: the first that ends a problem and whose own field is named by no new one, for adapters
        that find the next problems only when the first ones are gone. No field is moved twice in this way.
        """
        other: tuple[Spec, Problems, set[str]] | None = None
        for changes in moves:
            if self._left <= 0:
                return None
            changed = replaced(current, changes)
            if changed is None or changed in self._seen:
                continue
            result = self._try(changed)
            if isinstance(result, Written) or len(result) < len(problems):
                return changed, result
            ends = bool(_causes(problems) - _causes(result)) and self._moved.union(named(result)).isdisjoint(changes)
            other = other or ((changed, result, set(changes)) if ends else None)
        if other is None:
            return None
        self._moved |= other[2]
        return other[:2]

    def _from_defaults(self, spec: Spec, defaults: Spec) -> Written | None:
        """The framework's defaults, with as much of `spec` as goes in: what belongs together first, then each field."""
        current = defaults.replace(**{"topology.world_size": spec.topology.world_size})
        best = self._try(current)
        self._left += _FROM_DEFAULTS
        for group in TOGETHER:
            said = values_of(spec, group)
            sized = replaced(current, said)
            for change in [{}, *(splits(sized, None) if group is SIZES and sized is not None else ())]:
                current, taken = self._take(current, {**said, **change})
                best = taken or best
                if taken is not None:
                    break
        # What goes together once more: single fields may have made room for it.
        again: list[tuple[str, ...]] = [*((path,) for path in RANKED), *TOGETHER]
        for paths in again:
            current, taken = self._take(current, values_of(spec, paths))
            best = taken or best
        return best if isinstance(best, Written) else None

    def _take(self, current: Spec, changes: Mapping[str, Any]) -> tuple[Spec, Written | None]:
        """`current` with `changes` where that is written, else `current` itself."""
        if "micro_batch." in changes:
            changes = {path: value for path, value in changes.items() if path == "micro_batch." or "micro" not in path}
        changed = replaced(current, changes)
        if changed is None or changed == current or self._left <= 0:
            return current, None
        result = self._try(changed)
        return (changed, result) if isinstance(result, Written) else (current, None)


_FROM_DEFAULTS = 150
"""Attempts that are kept for building up from the target's defaults."""
_RESETS = 3
_BACK = 3
"""Attempts to take another way from the place before."""


def _causes(problems: Problems) -> set[tuple[str, ...]]:
    """The fields of problems, which tell them apart. A sentence with another number in it is no other problem."""
    return {problem.fields for problem in problems}


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


def _keys(written: Written) -> set[str]:
    return {key for key, _ in settings_in(written.values)}
