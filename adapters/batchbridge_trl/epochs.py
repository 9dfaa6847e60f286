"""How many micro-batches an epoch has: what TRL's sampler gives, and what its length tells transformers to expect."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import Rollout, Sizes


@dataclass(frozen=True)
class Epoch:
    """Micro-batches per device in one epoch: those that come (`real`), and those that `len(dataloader)` promises."""

    real: int
    promised: int


@dataclass(frozen=True)
class Sampler:
    """How a range of versions cuts an epoch.

    drops: prompts that fill no whole rollout are left out. counts_dropped: the sampler's length counts them all the
    same. whole_rollouts: the data loader yields a rollout per device at once, not a micro-batch.
    """

    versions: str
    drops: bool
    counts_dropped: bool
    whole_rollouts: bool
    source: str


SAMPLERS = (
    Sampler("<0.16", False, False, False, "trl 0.15.0 to 0.15.2 RepeatRandomSampler"),
    Sampler(">=0.16,<0.17", True, True, False, "trl 0.16.0 and 0.16.1 RepeatRandomSampler.__iter__ and __len__"),
    Sampler(">=0.17,<0.20", True, True, True, "trl 0.17.0 to 0.19.1 RepeatSampler.__iter__ and __len__"),
    Sampler(">=0.20", True, False, True, "trl 0.20.0 to 1.16.0 RepeatSampler.__iter__ and __len__"),
)


def sampler_of(version: str) -> Sampler:
    """The row of `version`."""
    return next(row for row in SAMPLERS if holds(row.versions, version))


def epoch(sizes: Sizes, rollout: Rollout, prompts: int, version: str, *, drop_last: bool = False) -> Epoch:
    """The epochs of a dataset of `prompts` prompts. `drop_last`: dataloader_drop_last."""
    sampler = sampler_of(version)
    per_rollout = rollout.steps_per_generation * max(sizes.iterations, 0)
    # One draw of the loader: a micro-batch of each device, or a rollout's part of each device.
    draw = rollout.completions if sampler.whole_rollouts else sizes.micro * sizes.world
    draws_per_rollout = (
        per_rollout if sampler.whole_rollouts else max(sizes.iterations, 0) * rollout.steps_per_generation
    )
    rows = prompts * sizes.generations
    if not sampler.drops:
        count = rows // draw if drop_last else -(-rows // draw)
        return Epoch(count, count)
    real = prompts // rollout.prompts * draws_per_rollout
    if not sampler.counts_dropped:
        return Epoch(real, real)
    rows *= per_rollout if sampler.whole_rollouts else max(sizes.iterations, 0)
    return Epoch(real, rows // draw if drop_last else -(-rows // draw))


def steps_per_epoch(promised: int, window: int) -> int:
    """Optimizer steps that transformers plans per epoch. Source: transformers 4.57.6 and 5.23.0
    Trainer.set_initial_training_values."""
    return max(-(-promised // window), 1)


def planned_steps(epoch: Epoch, window: int, epochs: float, max_steps: int) -> tuple[int, int]:
    """(Optimizer steps at which the run stops, epochs after which it stops): whichever comes first. The learning-rate
    schedule is made for the first."""
    per_epoch = steps_per_epoch(epoch.promised, window)
    if max_steps > 0:
        return max_steps, -(-max_steps // per_epoch)
    return math.ceil(epochs * per_epoch), math.ceil(epochs)
