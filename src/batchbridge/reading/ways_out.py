"""Ways out of an error, with the devices and the sizes of batches of the run that each makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from batchbridge.contract.reading import Reading
from batchbridge.meaning.findings import Finding, Fix
from batchbridge.reading.arguments import changed_source
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read

MOST_TRIED = 8
"""Ways out of one configuration that are read again: a reading takes some ten milliseconds."""

TriedReading = Callable[[Fix], Reading | None]
"""The reading with a fix; None where it says no sizes, or breaks the rule still, or another one that was kept."""


class WayOut(NamedTuple):
    """A fix, and the run that comes of it: devices that train the policy, completions of an optimizer step, prompts of
    a rollout; None where a size is open. number: which of a configuration's ways out it is, counted from 1, as
    `check --fix=N` takes it. reading: what it means."""

    number: int
    fix: Fix
    devices: int
    completions_per_step: int | None
    prompts_per_rollout: int | None
    reading: Reading


def trying(source: object, reading: Reading, code: str, **said: Any) -> TriedReading:
    """The function that reads `source`, which was read as `reading`, again with a fix of the rule `code`.

    said: the other arguments of `read`.
    """
    others = {one.code for one in reading.supposed.wrong} - {code}

    def tried(fix: Fix) -> Reading | None:
        loaded = load_source(source, framework=reading.framework, **_of_a_file(said))
        known = {*reading.native, *reading.given}
        of_launcher = [value for key, value in fix.changes.items() if value is not None and key not in known]
        devices = next((value for value in of_launcher if isinstance(value, int)), said.get("world_size"))
        changes = {key: value for key, value in fix.changes.items() if value is None or key in known}
        changed = changed_source(loaded, changes)
        version = None if reading.copy is not None else reading.framework_version
        again_as = partial(read, changed, framework=reading.framework, version=version)
        for world_size in dict.fromkeys((devices, None)):  # a configuration may say its devices itself
            again = again_as(world_size=world_size, dataset_size=said.get("dataset_size")).supposed
            if again.spec is not None and {one.code for one in again.wrong} <= others:
                return again
        return None

    return tried


def _of_a_file(said: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say how a file is loaded."""
    return {key: said[key] for key in ("env", "command", "world_size") if key in said}


def ways_out(
    errors: Sequence[Finding], tried: Callable[[str], TriedReading], asked: int | None
) -> tuple[tuple[Finding, tuple[WayOut, ...]], ...]:
    """Those of `errors` that have ways out, each with these as far as they are tried: those first that keep the devices
    that were `asked` for. What is safe is no choice, and no way out here."""
    found: list[tuple[Finding, tuple[WayOut, ...]]] = []
    left, number = MOST_TRIED, 0
    for finding in errors:
        fixes = [fix for fix in finding.fixes if fix.changes and not fix.safe][:left]
        readings = [(fix, tried(finding.code)(fix)) for fix in fixes]
        left -= len(readings)
        ways = [_way(fix, reading) for fix, reading in readings if reading is not None]
        if ways:
            ways.sort(key=lambda way: asked is not None and way.devices != asked)
            found.append((finding, tuple(way._replace(number=number + place) for place, way in enumerate(ways, 1))))
            number += len(ways)
    return tuple(found)


def _way(fix: Fix, reading: Reading) -> WayOut:
    spec = reading.spec
    assert spec is not None
    step, rollout = spec.optimizer_step, spec.rollout
    return WayOut(0, fix, spec.topology.world_size, step.completions_per_step, rollout.prompts_per_rollout, reading)
