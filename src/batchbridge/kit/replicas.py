"""The training processes of one model: which of them hold other rows, and which share the tokens of the same ones.

Every replica holds rows of its own. It is one rank, or several, each of which computes a part of the rows' tokens and
has the log-probabilities of all of them. Among the ranks that stand at the same place of their replicas every row is
found once. Its own file: the only code of a layer that runs collectives. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from batchbridge.errors import BatchDrift


class Replicas:
    """The ranks of one model, as one of them sees them.

    across: the process group of the ranks at this rank's place in every replica; None: all ranks. inside: that of this
    rank's own replica; None: it is alone in it. replica: this rank's number among the replicas; None: that in `across`.
    writes: whether this rank writes its replica's rows down; None: the first of a replica does.
    """

    def __init__(
        self, across: Any = None, inside: Any = None, *, replica: int | None = None, writes: bool | None = None
    ) -> None:
        import torch.distributed as dist

        self._across, self._inside = across, inside
        many = _are_many()
        self.replicas = int(dist.get_world_size(across)) if many else 1
        self.replica = (int(dist.get_rank(across)) if many else 0) if replica is None else replica
        self.writes = (inside is None or dist.get_rank(inside) == 0) if writes is None else writes

    def gather(self, mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Every replica's tuples. Collective."""
        return gathered(mine, self._across)

    def agree(self, compare: Callable[[], None]) -> None:
        """Runs `compare`, which gathers; raises on every rank the `BatchDrift` of any. Collective."""
        drift: BatchDrift | None = None
        try:
            compare()
        except BatchDrift as error:
            drift = error
        if self._inside is not None:
            # The other ranks of this replica compared their own measurements, among those at their place.
            drift = next((one for one in gathered([drift], self._inside) if one is not None), None)
        if drift is not None:
            raise drift


def gathered(mine: Sequence[Any], group: Any) -> list[Any]:
    """Every rank's items, in the order of the group's ranks. Collective."""
    if not _are_many():
        return list(mine)
    import torch.distributed as dist

    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, list(mine), group=group)
    return [row for part in parts for row in part]


def _are_many() -> bool:
    """Whether there are processes that were told of each other; a process without a group is alone."""
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())
