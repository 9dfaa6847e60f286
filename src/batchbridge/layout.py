"""Where the rows of a batch run: ranks and their order, with filler rows so that verl's own splits come out whole.

No part of the meaning: the step's weights make every placement equal. Pure; knows no verl.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchbridge.microbatch import partition


def layout(costs: Sequence[int], *, ranks: int, rows_per_micro_batch: int | None) -> list[int | None]:
    """The rows in the order in which verl deals them out: one contiguous block per rank, all of one size.

    costs: tokens of each row. rows_per_micro_batch: verl's fixed micro-batch; None with a token budget, which verl
    fills itself. None in the result is a filler row.
    """
    micro = rows_per_micro_batch or 1
    order: list[int | None] = []
    for hand in partition(costs, ranks=ranks, completions_per_device=micro):
        for rows in hand:
            order += [*rows, *[None] * (micro - len(rows))]
    return order


def fillers(order: Sequence[int | None]) -> int:
    """How many filler rows `order` needs."""
    return sum(row is None for row in order)
