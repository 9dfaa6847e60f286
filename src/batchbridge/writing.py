"""Keeps the promise of `Adapter.write`: what an adapter has made of a spec is read back before anybody gets it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge.adapter import Adapter, Context, Source
from batchbridge.spec import Spec, walk

UNKNOWN = ("objective.", "carried.", "advantage.")
"""Groups of canonical fields in which None means unknown, so that a framework's default may fill it in."""


def objections(adapter: Adapter, spec: Spec, values: Mapping[str, Any], context: Context) -> Iterator[str]:
    """What the native `values` say otherwise than `spec`, and what the framework refuses: problems of a `CannotWrite`.

    Each names its canonical field, or is a finding's message. `context` gives the version, and the world size where
    `values` do not say it.
    """
    back = adapter.read(Source(values=values), context)
    broken = [finding for finding in adapter.check(back) if finding.severity == "error" or finding.undecided]
    refused = [finding.message for finding in (*back.findings, *broken)]
    yield from refused
    if back.spec is None:
        if not refused:
            yield "the settings leave the run open"
        return
    if back.spec == spec:
        return
    wanted = {path: value for path, value, _ in walk(spec)}
    read = {path: value for path, value, _ in walk(back.spec)}
    for path in {**wanted, **read}:
        unknown = wanted.get(path) is None and path.startswith(UNKNOWN)
        if not unknown and read.get(path) != wanted.get(path):
            yield f"{path} = {wanted.get(path)}: {adapter.framework} would do {read.get(path)}"
