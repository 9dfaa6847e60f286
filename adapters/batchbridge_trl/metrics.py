"""The metrics that TRL logs of an optimizer step, however many micro-batches it was cut into."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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

    def of_the_step(self, gather: Callable[[Any], Sequence[Any]] = lambda mine: [mine]) -> None:
        """Replaces what each turn added by the step's own value: least, largest, or mean over its tokens.

        gather: every rank's, where turns and their values are each rank's own (`sizes`, too); collective.

        Ratios of whole sequences count rows; a filler is never clipped, and adds nothing. Source: trl 0.18.0 to 1.16.0,
        GRPOTrainer._compute_loss, whose values are over all ranks.
        """
        own = {name: values[self._before.get(name, 0) :] for name, values in self._metrics.items()}
        own = {name: added for name, added in own.items() if len(added) == len(self._sizes)}
        everyone = gather((list(self._sizes), own))
        sizes = [size for its, _ in everyone for size in its]
        tokens = sum(size[0] for size in sizes)
        completions = sum(size[1] for size in sizes)
        for name in own:
            values, start = self._metrics[name], self._before.get(name, 0)
            added = [value for _, its in everyone for value in its.get(name, ())]
            if len(added) != len(sizes) or len(added) < 2:
                continue
            if name == "step_time":  # each turn's own, where TRL is told that a step is one
                values[start:] = [sum(own[name])]
                continue
            of_means = self._of_means and name in ("clip_ratio/low_min", "clip_ratio/high_max")
            if name.endswith("_min") and not of_means:
                value = min(_numbers(added), default=added[0])
            elif name.endswith("_max") and not of_means:
                value = max(_numbers(added), default=added[0])
            elif name == "policy_loss":  # shares of the step's
                value = sum(added)
            elif (self._by_row and "clip_ratio" in name) or name.endswith("phi_seq_mean"):
                value = sum(one * size[2] for one, size in zip(added, sizes, strict=True)) / max(completions, 1)
            else:
                value = sum(one * size[0] for one, size in zip(added, sizes, strict=True)) / max(tokens, 1)
            values[start:] = [value]


_COUNTED = ("_step", "_current_train_step_time")


@contextlib.contextmanager
def uncounted(trainer: Any, *, always: bool = False) -> Iterator[None]:
    """The span of a micro-batch in the trainer's own step; where it fails, or `always`, nothing of it is in what the
    trainer counts, times and logs."""
    metrics = trainer._metrics["train"]
    before = {name: len(values) for name, values in metrics.items()}
    counted = {name: vars(trainer)[name] for name in _COUNTED if name in vars(trainer)}
    over = False
    try:
        yield
        over = True
    finally:
        if always or not over:
            for name, values in metrics.items():
                del values[before.get(name, 0) :]
            vars(trainer).update(counted)


def _numbers(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]
