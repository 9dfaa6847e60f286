"""The columns that a completion carries to its loss, digested where data are prepared and compared in the learner that
trains it; what makes its advantages, held where data are prepared.

Its own file: the data preparation actor writes, learners read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from batchbridge.kit.producers import settings_below
from batchbridge.kit.row_digests import InputObjection, RowDigests, digests_of, input_objection
from batchbridge_open_instruct.completions import PackedBatch, PackedCompletion

_ROWS = ("query_responses", "response_masks", "advantages", "vllm_logprobs")
"""Lists of packed sequences, an entry for each row, and of a collated batch, an entry for each micro-batch."""


def told_of(packed: Any, rows: Sequence[Sequence[PackedCompletion]]) -> RowDigests:
    """The digests of the completions of packed sequences, by row."""
    return {
        (piece.position, piece.sample): _of(piece, [getattr(packed, name)[row] for name in _ROWS])
        for row, pieces in enumerate(rows)
        for piece in pieces
    }


def changed(batch: Any, table: PackedBatch) -> list[list[InputObjection]]:
    """The objections to completions of a learner's batch that do not carry what they did when it was prepared, by
    micro-batch."""
    found: list[list[InputObjection]] = []
    for index, rows in enumerate(table.micro_batches):
        found.append([])
        for row, piece in [(row, piece) for row, pieces in enumerate(rows) for piece in pieces]:
            told = table.digests.get((piece.position, piece.sample), {})
            have = _of(piece, [getattr(batch, name)[index][row] for name in _ROWS])
            why = input_objection(told, have, f"prompt {piece.prompt} sample {piece.sample}")
            found[-1] += [] if why is None else [why]
    return found


def _of(piece: PackedCompletion, rows: Sequence[Any]) -> dict[str, int]:
    middle = piece.start + piece.prompt_tokens
    end = middle + piece.completion_tokens
    starts = (piece.start, middle, middle, middle)
    return digests_of({name: row[start:end] for name, start, row in zip(_ROWS, starts, rows, strict=True)})


def advantages_of(packed: Any, rows: Sequence[Sequence[PackedCompletion]], group: int) -> Iterator[tuple[int, float]]:
    """(number of the completion in its rollout, an advantage of it): the largest and the smallest of each."""
    for row, pieces in enumerate(rows):
        for piece in pieces:
            middle = piece.start + piece.prompt_tokens
            inside = slice(middle, middle + piece.completion_tokens)
            values = packed.advantages[row][inside][packed.response_masks[row][inside].bool()]
            for value in values.aminmax() if len(values) else ():
                yield piece.position * group + piece.sample, float(value)


def settings_read(actor: Any) -> dict[str, Any]:
    """The settings of now that generation, rewards and advantages read, by key. Source: open-instruct e6c3044
    data_loader.py StreamingDataLoaderConfig, vllm_utils.py SamplingConfig."""
    found = settings_below(actor, ("config", "generation_config"))
    return {name.removeprefix("config."): value for name, value in found.items()}
