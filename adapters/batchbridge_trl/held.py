"""Settings as a constructed `GRPOConfig` holds them: its post-init fills in both ways to say a rollout's size.

A trainer's configuration object is so, and every record of a run that was made of one (W&B's, trackio's, a checkpoint's
`training_args.bin`). Source: trl 0.16.0 to 1.16.0 GRPOConfig.__post_init__.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge_trl.sizes import ACCUMULATION, BATCH, MICRO, STEPS


def as_given(held: Mapping[str, Any], world: int | None) -> dict[str, Any]:
    """Settings as they were given: at most one of the two that a configuration holds. generation_batch_size is left
    out, and steps_per_generation too where it is the accumulation anyway. world: devices, where they are known."""
    given = dict(held)
    micro, steps, batch = (given.get(key) for key in (MICRO, STEPS, BATCH))
    if _are_sizes(micro, steps, world) and batch == micro * steps * world:  # type: ignore[operator]  # they are sizes
        given[BATCH] = None
        if steps == given.get(ACCUMULATION):
            given[STEPS] = None
    elif _are_sizes(batch, steps):
        given[STEPS] = None
    return given


def world_of(held: Mapping[str, Any]) -> int | None:
    """The devices on which a configuration that holds these settings was constructed; None: they do not say it."""
    micro, steps, batch = (held.get(key) for key in (MICRO, STEPS, BATCH))
    if not _are_sizes(micro, steps, batch) or batch % (share := micro * steps):  # type: ignore[operator]  # they are
        return None
    return int(batch // share)


def _are_sizes(*values: object) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)
