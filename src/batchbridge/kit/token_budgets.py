"""Token budgets that a framework cuts by natively: whether its own settings, changed, would cut as they ask.

Its own file: five modules of adapters import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.contract import plugins
from batchbridge.contract.reading import Reading, Source
from batchbridge.meaning.spec import MicroBatch
from batchbridge.reading.read import read_again

MicroBatchCut = tuple[str, int | None]


def cut_of(micro: MicroBatch) -> tuple[MicroBatchCut, MicroBatchCut]:
    """The cut of training and of forward-only passes: by what, and how much. Two micro-batches with equal cuts differ
    at most in what becomes of a completion above its budget."""
    tokens, completions = micro.tokens_per_device, micro.completions_per_device
    training = ("completions", completions) if tokens is None else ("tokens", tokens)
    if micro.forward_tokens_per_device is not None:
        return training, ("tokens", micro.forward_tokens_per_device)
    if micro.forward_completions_per_device is not None and tokens is None:
        return training, ("completions", micro.forward_completions_per_device)
    return training, training


def objection(reading: Reading, settings: Mapping[str, Any], asked: MicroBatch) -> str | None:
    """The reason why the run of `reading`, its native `settings` changed, would not be cut as `asked`; None where it
    would be.

    The changed configuration is read and checked as any other: what its own rules say is the objection.
    """
    given = {key: reading.native[key] for key in reading.given if key in reading.native}
    world = None if reading.spec is None else reading.spec.topology.world_size
    changed = read_again(Source(values={**given, **settings}), plugins.adapters()[reading.framework], reading, world)
    before = {finding.code for finding in reading.findings}
    new = [found for found in changed.wrong if found.code not in before]
    if new:
        return "; ".join(f"{found.code}: {found.message}" for found in new)
    if changed.spec is None:
        return f"with {settings} nothing can be read"
    found_cut, wanted = cut_of(changed.spec.micro_batch), cut_of(asked)
    return None if found_cut == wanted else f"{settings} would cut by {found_cut}, not by {wanted}"
