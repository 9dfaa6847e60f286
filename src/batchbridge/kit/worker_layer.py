"""The patches of one training worker, as an object that the worker keeps; knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from batchbridge.errors import CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders, Recorder


class WorkerLayer:
    """What all have: orders, patches, a recorder of the steps. group: of the ranks that share a step; None: all."""

    def __init__(
        self, framework: str, orders: Orders, patches: Patches, *, rank: int, ranks: int, group: Any = None
    ) -> None:
        self._orders, self._patches, self._ranks, self._group = orders, patches, ranks, group
        self._recorder = Recorder(framework, orders, rank=rank, world_size=ranks, gather=self._gather)
        self._plan, self._enforces = self._recorder.plan, orders.mode == "enforce"
        self._last: int | None = None

    def probe(self) -> None:
        """Holds the worker's loss against the plan's weights, where it shall be enforced. Collective.

        Raises `CannotAttach`.
        """

    def remove(self) -> None:
        """Restores the worker and closes the ledger."""
        try:
            self._patches.undo()
        finally:
            self._recorder.close()

    def _follow(self, step: int) -> None:
        """Raises `CannotAttach` unless `step` comes after the last one."""
        if self._last is not None and step != self._last + 1:
            reason = f"optimizer step {step} follows step {self._last}; before a second fit(), wrap once more"
            raise CannotAttach({"clock": reason})

    def _gather(self, mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Every rank's tuples. Collective."""
        import torch.distributed as dist

        parts: list[Any] = [None] * self._ranks
        dist.all_gather_object(parts, list(mine), group=self._group)
        return [row for part in parts for row in part]


def put_on(worker: Any, make: Callable[[Patches], WorkerLayer]) -> None:
    """Gives a worker the layer that `make` makes; a worker that has one loses it first. Where `make` raises, the worker
    is unpatched."""
    remove(worker)
    patches = Patches()
    try:
        worker.batchbridge = make(patches)
    except BaseException:
        patches.undo()
        raise


def probe(worker: Any) -> None:
    """See `WorkerLayer.probe`."""
    worker.batchbridge.probe()


def remove(worker: Any) -> None:
    """Undoes `put_on`; a worker without a layer is left alone."""
    layer = vars(worker).pop("batchbridge", None)
    if layer is not None:
        layer.remove()
