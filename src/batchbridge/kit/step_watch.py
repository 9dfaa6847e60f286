"""What the rows of an optimizer step weighed in one process, and what speaks against it; knows no framework.

Two places, neither of which knows a denominator: the log-probabilities that the loss is made of (a `Tap`), and one
small weight, whose gradients of every micro-batch are held against what the optimizer finds (`sharded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from batchbridge.errors import LostGradient
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.sharded import smallest_weight
from batchbridge.kit.workers import TrainedRow


class StepWatch:
    """The measuring of one process's optimizer steps.

    tap: makes a new tap of the loss. module: whose smallest weight is watched; None: none is. shows: whether a row's
    gradient shows its weight.
    """

    def __init__(self, tap: Callable[[], Tap], module: Any, patches: Patches, *, shows: bool = True) -> None:
        self._tap, self._shows = tap(), shows
        self._places: list[Sequence[int]] = []
        self._clipping = 1.0
        self._weight = None if module is None else smallest_weight(module)
        if self._weight is not None:
            undo, why = self._weight.witness.remove, "what a step trains is measured"
            patches.made(self._weight.name, undo, what="its gradients hooked", why=why)

    @property
    def parts(self) -> int:
        """Micro-batches that were seen since the last `look`."""
        return len(self._places)

    def see(self, made: torch.Tensor, places: Sequence[int], rows: Rows | None, view: Any = None) -> None:
        """Watches a micro-batch's log-probabilities. places: of its rows in the batch; rows None: it has none there."""
        if rows is not None:
            self._tap.watch(made, rows, view=view)
        self._places.append(places if rows is not None else [-1])

    def clipped(self, norm: float, bound: float) -> None:
        """The gradients were clipped. Source: torch.nn.utils.clip_grad_norm_ and FSDP1's, whose factor has 1e-6."""
        self._clipping = min(1.0, bound / (norm + 1e-6)) if math.isfinite(bound) else 1.0

    def look(self, rows: Mapping[int, TrainedRow], places: range, scale: float) -> list[str]:
        """Reads off what every row of the optimizer step weighed. Returns what this process has against it. Collective.

        rows: by their place in the batch. places: of the step; those without a row are fillers. scale: what gradients
        at the log-probabilities were multiplied with, beside the clipping.
        """
        objections = []
        parts, self._places = self._places, []
        for row in rows.values():
            row.measured(Measured(math.nan if self._shows else None, 0.0))
        try:
            seen = self._tap.take(scale=scale)
        except LostGradient as error:
            objections.append(f"{error}: something took it away between the loss and the log-probabilities")
        else:
            trained = [place for part in parts for place in part]
            if self._shows and sorted(trained) != list(places):
                there = len(set(trained) & set(places))
                objections.append(f"of the step's {len(places)} rows on this rank, {there} reached the loss")
            else:
                found = dict(zip(trained, (one for part in seen for one in part), strict=True))
                for place, row in rows.items():
                    if (measured := found.pop(place, None)) is not None:
                        row.measured(measured)
                if any(filler.departure > filler.tolerance for filler in found.values()):
                    objections.append("a filler row, which has nothing to train, got a gradient")
        clipping, self._clipping = self._clipping, 1.0
        if self._weight is not None and (why := self._weight.objection(clipping / scale)) is not None:
            objections.append(why)
        return objections

    def drop(self) -> None:
        """Forgets what was seen since the last `look`."""
        self._tap.drop()
        self._places.clear()
        self._clipping = 1.0
        if self._weight is not None:
            self._weight.witness.drop()
