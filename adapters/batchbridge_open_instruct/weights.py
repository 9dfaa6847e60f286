"""The small trained weight whose gradient is looked at before the optimizer updates, by what trains the model.

Its own file: it imports torch.distributed, which the learners do not.
"""

from __future__ import annotations

from typing import Any

from batchbridge.kit.measuring import Witness
from batchbridge.kit.sharded import ShardedWeight, WholeWeight, smallest_weight


def of_module(module: Any) -> ShardedWeight | None:
    """The weight that is watched in a module that FSDP shards, or that one rank trains alone."""
    if hasattr(module, "set_requires_gradient_sync"):
        return smallest_weight(module)
    chosen = Witness.choose(list(module.named_parameters()))
    return None if chosen is None else WholeWeight(*chosen, lambda parameter: parameter.grad)
