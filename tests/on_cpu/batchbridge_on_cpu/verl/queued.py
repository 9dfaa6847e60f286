"""verl's fully_async_policy on CPU: what `apart` has, and hand-overs that are left out, in a manager of them that no
setting names there.

verl's own: trainer, rollouter and queue in their processes, and what `apart` says. `BATCHBRIDGE_SKIP`: as in `apart`,
of verl's own manager.
"""

from __future__ import annotations

import os
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngineManager

import batchbridge_on_cpu.verl.apart  # noqa: F401 - registers the engine and the transport of weights

_native = CheckpointEngineManager.update_weights


async def _update_weights(self: Any, global_steps: int | None = None) -> Any:
    if str(global_steps) in os.environ["BATCHBRIDGE_SKIP"].split(","):
        return {}
    return await _native(self, global_steps)


if os.environ.get("BATCHBRIDGE_SKIP"):
    CheckpointEngineManager.update_weights = _update_weights
