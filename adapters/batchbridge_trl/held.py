"""Settings as a constructed `GRPOConfig` holds them: its post-init fills in both ways to say a rollout's size.

A trainer's configuration object is so, and every record of a run that was made of one (W&B's, trackio's, a checkpoint's
`training_args.bin`). Source: trl 0.16.0 to 1.16.0 GRPOConfig.__post_init__.

Its own file: only readings of such objects and records import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge_trl.sizes import ACCUMULATION, BATCH, MICRO, STEPS
from batchbridge_trl.world import are_sizes


def without_derived(held: Mapping[str, Any], world: int | None) -> dict[str, Any]:
    """Settings as they were given: at most one of the two that a configuration holds. generation_batch_size is left
    out, and steps_per_generation too where it is the accumulation anyway. world: devices, where they are known."""
    given = dict(held)
    micro, steps, batch = (given.get(key) for key in (MICRO, STEPS, BATCH))
    if are_sizes(micro, steps, world) and batch == micro * steps * world:  # type: ignore[operator]  # they are sizes
        given[BATCH] = None
        if steps == given.get(ACCUMULATION):
            given[STEPS] = None
    elif are_sizes(batch, steps):
        given[STEPS] = None
    return given
