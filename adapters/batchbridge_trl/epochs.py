"""The number of micro-batches of an epoch, and how transformers cuts them into optimizer steps.

TRL's sampler gives the micro-batches; `len(dataloader)` promises how many, and transformers plans with the promise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import RolloutSizes, TrlSizes


class EpochCut(NamedTuple):
    """The cutting of an epoch in a range of versions.

    drops: prompts that fill no whole rollout are left out. counts_dropped: the sampler's length counts them anyway.
    whole_rollouts: the data loader yields a rollout per device at once, not a micro-batch.
    """

    versions: str
    drops: bool
    counts_dropped: bool
    whole_rollouts: bool
    source: str


SAMPLERS = (
    EpochCut("<0.16", False, False, False, "trl 0.15.0 to 0.15.2 RepeatRandomSampler"),
    EpochCut(">=0.16,<0.17", True, True, False, "trl 0.16.0 and 0.16.1 RepeatRandomSampler.__iter__ and __len__"),
    EpochCut(">=0.17,<0.20", True, True, True, "trl 0.17.0 to 0.19.1 RepeatSampler.__iter__ and __len__"),
    EpochCut(">=0.20", True, False, True, "trl 0.20.0 to 1.16.0 RepeatSampler.__iter__ and __len__"),
)


class EpochLoop(NamedTuple):
    """The optimizer steps of an epoch, as the transformers release that is assumed beside a range of versions makes
    them.

    plans_short_steps: an epoch's remainder counts as a step when steps are planned; it is trained as one anyway, up to
    as many micro-batches as the number of prompts leaves over. divides_by_window: where transformers divides losses, it
    divides by the window's micro-batches, not by gradient_accumulation_steps.
    """

    versions: str
    plans_short_steps: bool
    divides_by_window: bool
    source: str


LOOPS = (
    EpochLoop(
        "<0.17", False, False, "transformers 4.51.3 Trainer.set_initial_training_values and _inner_training_loop"
    ),
    EpochLoop(
        ">=0.17",
        True,
        True,
        "transformers 4.57.6 and 5.23.0 Trainer.set_initial_training_values and _inner_training_loop; 4.52 to 4.54 "
        "divide by gradient_accumulation_steps",
    ),
)


def sampler_of(version: str) -> EpochCut:
    """The row of `version`."""
    return next(row for row in SAMPLERS if holds(row.versions, version))


def loop_of(version: str) -> EpochLoop:
    """The row of `version`."""
    return next(row for row in LOOPS if holds(row.versions, version))


class EpochLength(NamedTuple):
    """Micro-batches per device in one epoch: those that come (`real`), and those that `len(dataloader)` promises.

    window: micro-batches per optimizer step. prompts: of the dataset.
    """

    real: int
    promised: int
    window: int
    prompts: int
    loop: EpochLoop

    @property
    def planned_steps(self) -> int:
        """Optimizer steps per epoch that transformers plans."""
        steps = -(-self.promised // self.window) if self.loop.plans_short_steps else self.promised // self.window
        return max(steps, 1)

    @property
    def last_window(self) -> int:
        """The most micro-batches that the epoch's last window draws; `windows` has their number."""
        left = self.promised if self.loop.plans_short_steps else self.prompts  # 4.51.3 takes prompts for micro-batches
        return left % self.window or self.window

    @property
    def windows(self) -> int:
        """Windows per epoch, empty ones included."""
        if self.loop.plans_short_steps:
            return -(-self.promised // self.window)
        return self.promised // self.window + (self.window > 1)

    def stops(self, epochs: float, max_steps: int) -> tuple[int, int]:
        """(Optimizer steps, epochs) after which the run stops, whichever comes first. The learning-rate schedule is
        made for the first."""
        if max_steps > 0:
            return max_steps, -(-max_steps // self.planned_steps)
        return math.ceil(epochs * self.planned_steps), math.ceil(epochs)


def epoch(
    sizes: TrlSizes, rollout: RolloutSizes, prompts: int, version: str, *, drop_last: bool = False
) -> EpochLength:
    """The epochs of a dataset of `prompts` prompts. `drop_last`: dataloader_drop_last."""
    sampler, passes = sampler_of(version), max(sizes.iterations, 0)
    # One draw of the loader: a micro-batch of each device, or a rollout's part of each device.
    draw = rollout.completions if sampler.whole_rollouts else sizes.micro * sizes.world
    repeats = passes * rollout.steps_per_generation if sampler.whole_rollouts else passes
    rows = prompts * sizes.generations * repeats
    promised = real = rows // draw if drop_last else -(-rows // draw)
    if sampler.drops:
        real = prompts // rollout.prompts * passes * rollout.steps_per_generation
        promised = promised if sampler.counts_dropped else real
    return EpochLength(real, promised, sizes.window, prompts, loop_of(version))
