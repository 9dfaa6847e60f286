"""Every optimizer step's numbers on their way to a trainer's own loggers.

`Recorder.numbers` has them, in the process of rank 0; an adapter's `reports` function takes them away wherever its
trainer logs, and adds `logged` of them to what is logged there. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from batchbridge.contract.attachment import Attachment
from batchbridge.kit.patches import Patches
from batchbridge.ledger.numbers import PaddingTokens, StepNumbers

__all__ = ["PaddingTokens", "StepNumbers", "logged", "with_patches"]


def logged(steps: Sequence[StepNumbers]) -> dict[str, float]:
    """The numbers that are logged of the optimizer steps since the last time; empty where there were none.

    `batchbridge/completions` and `/response_tokens` of a step, the mean where there were several; `/drift`, the largest
    of them, left out where nothing showed a weight; `/padding_saved`, the share of the tokens that padding each
    completion to its device's longest would have taken, left out where nobody knows.
    """
    if not steps:
        return {}
    found: dict[str, float] = {
        "batchbridge/completions": sum(step.completions for step in steps) / len(steps),
        "batchbridge/response_tokens": sum(step.response_tokens for step in steps) / len(steps),
    }
    drifts = [step.drift for step in steps if step.drift is not None]
    if drifts:
        found["batchbridge/drift"] = max(drifts)
    if unsaved := sum(step.unsaved or 0 for step in steps):
        found["batchbridge/padding_saved"] = 1.0 - sum(step.computed or 0 for step in steps) / unsaved
    return found


def with_patches(attachment: Attachment, patches: Patches, end: Callable[[], None] = lambda: None) -> Attachment:
    """The attachment with more patches on top of its own, which are undone and suspended before those. end: undoes
    what `patches` does not. The attributes must be others than the attachment's."""

    def detach() -> None:
        try:
            patches.undo()
            end()
        finally:
            attachment.detach()

    @contextmanager
    def suspended() -> Iterator[None]:
        with patches.suspended(), attachment.suspended():
            yield

    return replace(attachment, changes=(*attachment.changes, *patches.changes), detach=detach, suspended=suspended)
