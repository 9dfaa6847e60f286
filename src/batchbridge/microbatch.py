"""How an optimizer step's completions are spread over ranks and micro-batches.

No part of the meaning: with weights at optimizer-step scope any partition gives the same gradient. What every partition
must keep is that all ranks run the same number of micro-batches of the same size, because trainers communicate inside
them; what is missing is filled with `None`, a row that weighs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

MicroBatches = list[list[int | None]]
"""One rank's micro-batches: positions in the step, or None for a filler row."""


def partition(costs: Sequence[int], *, ranks: int, completions_per_device: int) -> list[MicroBatches]:
    """Micro-batches of at most `completions_per_device` completions, for each rank.

    `costs[i]` is completion i's token count. Completions of similar length share a micro-batch, so that little is
    padded, and the ranks' loads are balanced by dealing each row of `ranks` completions in alternating direction.
    Deterministic.
    """
    if ranks < 1 or completions_per_device < 1:
        raise ValueError(f"ranks = {ranks}, completions_per_device = {completions_per_device}: must be at least 1")
    by_length = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    per_round = ranks * completions_per_device
    result: list[MicroBatches] = [[] for _ in range(ranks)]
    for start in range(0, len(by_length), per_round):
        chunk: list[int | None] = list(by_length[start : start + per_round])
        chunk += [None] * (-len(chunk) % ranks)
        hands: MicroBatches = [[] for _ in range(ranks)]
        for turn, first in enumerate(range(0, len(chunk), ranks)):
            row = chunk[first : first + ranks]
            for hand, item in zip(hands if turn % 2 == 0 else reversed(hands), row, strict=True):
                hand.append(item)
        for rank, hand in enumerate(hands):
            result[rank].append(hand)
    return result
