"""Completions in packed rows: which they are, where they lie, and what goes with a learner's batch of them.

Its own file: the data preparation actor makes them, learners read them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from batchbridge.kit.row_digests import RowDigests
from batchbridge_open_instruct.candidates import TakenPrompt


@dataclass(frozen=True)
class PackedCompletion:
    """One completion in a packed row. start: of its prompt in the row (tokens). weights_of: training steps before the
    weights that generated it; None: Open-Instruct does not say."""

    rollout: int
    prompt: int
    position: int
    sample: int
    start: int
    prompt_tokens: int
    completion_tokens: int
    reward: float
    weights_of: int | None


@dataclass(frozen=True)
class PackedBatch:
    """The pieces of one rank's batch, by micro-batch and row. A filler row has none. taken: by its rollout, where the
    plan is enforced."""

    spec_digest: str
    micro_batches: tuple[tuple[tuple[PackedCompletion, ...], ...], ...]
    taken: tuple[TakenPrompt, ...]
    digests: RowDigests = dataclasses.field(default_factory=dict)
    """(position, sample) -> the digests of what a completion carries to its loss; none in a run that is observed."""
