"""The small trained weight whose gradient is looked at before the optimizer updates, by what trains the model.

Its own file: it imports torch.distributed, which the learners do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from batchbridge.kit.measuring import Witness, all_reduce_over
from batchbridge.kit.sharded import ShardedWeight, smallest_weight


class WholeWeight(ShardedWeight):
    """A weight whose gradient someone puts together, or that no rank shares."""

    def __init__(
        self, name: str, parameter: torch.Tensor, whole: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> None:
        self.name, self._whole = name, whole
        self.witness = Witness(parameter, all_reduce_over())

    def gradient(self) -> torch.Tensor | None:
        """The gradient of the whole weight, as in `ShardedWeight`."""
        return self._whole(self.witness.parameter)


def of_deepspeed(module: Any) -> ShardedWeight | None:
    """The weight that is watched in a module that DeepSpeed trains."""
    from deepspeed.utils import safe_get_full_grad

    chosen = Witness.choose(list(module.named_parameters()), size=_whole_size)
    return None if chosen is None else WholeWeight(*chosen, safe_get_full_grad)


def of_module(module: Any) -> ShardedWeight | None:
    """The weight that is watched in a module that FSDP shards, or that one rank trains alone."""
    if hasattr(module, "set_requires_gradient_sync"):
        return smallest_weight(module)
    chosen = Witness.choose(list(module.named_parameters()))
    return None if chosen is None else WholeWeight(*chosen, lambda parameter: parameter.grad)


def _whole_size(parameter: torch.Tensor) -> int:
    """Values of a parameter; under ZeRO-3 a rank holds a part. Source: deepspeed 0.19.6 partition_parameters."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
