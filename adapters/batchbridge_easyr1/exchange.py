"""Exchanges between the training workers of one actor, where several ranks may share the tokens of the same rows.

With Ulysses (S = `worker.actor.ulysses_size`) every S ranks are one replica: they hold the same rows, each computes a
part of their tokens, and each has the log-probabilities of all of them. Among the ranks that stand at the same place of
their replicas every row is found once.

Source: EasyR1 0.3.2 to 0.3.3.dev0 FSDPWorker._init_dist_mesh, sharding_manager/fsdp_ulysses.py.

Its own file: the only code of the engine that runs collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from batchbridge import BatchDrift


class Exchange:
    """The ranks of one worker's actor.

    replicas: how many there are. replica: this rank's. writes: whether this rank is the first of its replica, which
    writes the replica's rows down.
    """

    def __init__(self, worker: Any) -> None:
        mesh = worker.ulysses_device_mesh
        self._rows: Any = None if mesh is None else mesh["dp"].get_group()
        self._sequence: Any = None if mesh is None else mesh["sp"].get_group()
        self.replicas, self.replica = dist.get_world_size(self._rows), dist.get_rank(self._rows)
        self.writes = mesh is None or dist.get_rank(self._sequence) == 0

    def gather(self, mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Every replica's tuples. Collective."""
        parts: list[Any] = [None] * self.replicas
        dist.all_gather_object(parts, list(mine), group=self._rows)
        return [row for part in parts for row in part]

    def agree(self, compare: Callable[[], None]) -> None:
        """Runs `compare`, which gathers; raises on every rank the `BatchDrift` of any. Collective."""
        drift: BatchDrift | None = None
        try:
            compare()
        except BatchDrift as error:
            drift = error
        if self._sequence is not None:
            # The other ranks of this replica compared their own measurements, among those at their place.
            found: list[BatchDrift | None] = [None] * dist.get_world_size(self._sequence)
            dist.all_gather_object(found, drift, group=self._sequence)
            drift = next((one for one in found if one is not None), None)
        if drift is not None:
            raise drift
