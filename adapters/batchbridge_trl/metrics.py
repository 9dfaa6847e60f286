"""The metrics that TRL logs of an optimizer step, however many micro-batches it was cut into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchbridge_trl import releases

CLIPS_BY_ROW = ">=1.9"
"""Releases of TRL whose clip_ratio/low_min and high_max are of rows; before, of each rank's mean over its tokens."""


class StepMetrics:
    """The values that a step's micro-batches add to the trainer's metrics, made one value per step.

    TRL logs the plain mean over micro-batches, natively equal in size. Here they are cut by length, so that such a mean
    would depend on the cut. sizes: (response tokens, completions, rows with fillers) of all ranks in each turn.
    """

    def __init__(self, trainer: Any, sizes: Sequence[tuple[int, int, int]]) -> None:
        self._metrics, self._sizes = trainer._metrics["train"], sizes
        self._by_row = releases.value(trainer, "importance_sampling_level") == "sequence"
        # Least and largest of the ranks' means: on one rank the mean itself.
        self._of_means = not releases.has(CLIPS_BY_ROW) and trainer.accelerator.num_processes == 1
        self._before = {name: len(values) for name, values in self._metrics.items()}

    def of_the_step(self) -> None:
        """Replaces what each turn added by the step's own value: least, largest, or mean over its tokens.

        Ratios of whole sequences count rows; a filler is never clipped, and adds nothing. Source: trl 0.18.0 to 1.16.0,
        GRPOTrainer._compute_loss, whose values are over all ranks.
        """
        tokens = sum(size[0] for size in self._sizes)
        completions = sum(size[1] for size in self._sizes)
        for name, values in self._metrics.items():
            start = self._before.get(name, 0)
            added = values[start:]
            if len(added) != len(self._sizes) or len(added) < 2:
                continue
            of_means = self._of_means and name in ("clip_ratio/low_min", "clip_ratio/high_max")
            if name.endswith("_min") and not of_means:
                value = min(_numbers(added), default=added[0])
            elif name.endswith("_max") and not of_means:
                value = max(_numbers(added), default=added[0])
            elif name == "policy_loss":  # shares of the step's
                value = sum(added)
            elif (self._by_row and "clip_ratio" in name) or name.endswith("phi_seq_mean"):
                value = sum(one * size[2] for one, size in zip(added, self._sizes, strict=True)) / max(completions, 1)
            else:
                value = sum(one * size[0] for one, size in zip(added, self._sizes, strict=True)) / max(tokens, 1)
            values[start:] = [value]


def _numbers(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]
