"""Observing and verifying ms-swift's `GRPOTrainer`: its rows are named where its generation gives them, and found again
where its loss takes them.

Natively a rollout is a list of micro-batches, each with a `GRPOBatch`, and the loss takes one of them whole, with
log-probabilities as wide as its masks. Nothing of it is changed. Source: see `swift_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from batchbridge.kit.measuring import Rows
from batchbridge_trl.observe import ROW, TrlObserver
from batchbridge_trl.swift_rows import Columns, SwiftTap, flat


class SwiftObserver(TrlObserver):
    """The patches of ms-swift's trainer that runs natively: recorded, and in mode "verify" held against the plan."""

    _tap: SwiftTap

    def prepare(self) -> None:
        """The measuring. While it trains, ms-swift puts a clipping of its own into Accelerate's class, which leaves
        out an update whose norm is not a number: it is asked for at each call."""
        accelerator, what = self._trainer.accelerator, "ms-swift's own clipping is called"

        def clip(*arguments: Any, **options: Any) -> Any:
            return type(accelerator).clip_grad_norm_(accelerator, *arguments, **options)

        self._patches.set(accelerator, "clip_grad_norm_", clip, what=what, why="as natively")
        super().prepare()

    def columns_of(self, output: Any) -> Columns:
        """The columns of a rollout, which is a list of micro-batches."""
        return self._tap.columns_of(output)

    def numbered(self, output: Any, numbers: torch.Tensor) -> Any:
        """The micro-batches with the number of each of their rows in the rollout; ms-swift reads no key but its own."""
        return list(_numbered(output, numbers))

    def columns_in_loss(self, inputs: Any) -> Mapping[str, torch.Tensor]:
        """The columns that a loss takes; those of the rollout where it takes rows that no rollout of ms-swift's has,
        which is held against the step."""
        try:
            return flat([inputs], self._trainer.accelerator.device)
        except ValueError as error:
            if not self._holds:
                raise
            self.exchanged.append(f"the loss takes other rows than were generated: {error}")
            return {name: column[inputs[ROW]] for name, column in self._generated.items()}

    def expected(self, inputs: Any) -> Rows:
        """The rows of a loss, and what they are meant to train. Copies: the loss may change what it was given."""
        batch = inputs["grpo_batch"]
        old, reference = batch.old_per_token_logps, batch.ref_per_token_logps if self._trainer.beta else None
        return Rows(
            mask=batch.completion_mask.to(torch.long),
            advantages=batch.advantages.clone(),
            old=None if old is None else old.clone(),
            reference=None if reference is None else reference.clone(),
        )


def _numbered(parts: Any, numbers: torch.Tensor) -> Iterator[dict[str, Any]]:
    start = 0
    for part in parts:
        rows = len(part["model_inputs"]["input_ids"])
        yield {**part, ROW: numbers[start : start + rows]}
        start += rows
