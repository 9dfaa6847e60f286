"""Trainers that are really sharded on a CPU: FSDP2 or DeepSpeed's ZeRO on gloo, and their whole gradients.

For the runs of `test_fsdp` and `test_deepspeed`, and for benchmarks/trl_step_time.py.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from batchbridge.kit.deepspeed import BeforeUpdate, whole_gradient
from batchbridge_trl.testing import Captured


def shard_on_the_cpu() -> None:
    """Lets Accelerate shard on the CPU as it does on GPUs, with gloo in place of NCCL, from the next trainer on.

    Source: accelerate 1.4.0 to 1.15.0 state.py, whose branch for MULTI_GPU does the same.
    """
    native = AcceleratorState.__init__

    def sharding(self: Any, *arguments: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        native(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
        # FSDP1 knows its modules' device as "cpu", not as the rank's, "cpu:0".
        for state in (vars(self), PartialState._shared_state):
            state |= {"device": torch.device("cpu"), "distributed_type": self.distributed_type}

    AcceleratorState.__init__ = sharding


def zero_on_the_cpu(**options: Any) -> None:
    """Starts DeepSpeed on gloo; `options` of its init_distributed. Before, `ACCELERATE_USE_CPU` is taken away: with it
    Accelerate takes DDP."""
    os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # DeepSpeed would compile an exchange of its own, behind a lock that a process which is killed meanwhile leaves.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", **options)


class CapturedWhole(Captured):
    """Whole gradients right before the engine clips and updates, and whole parameters."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer.model)
        self._accelerator = trainer.accelerator

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        BeforeUpdate(self._accelerator.deepspeed_engine_wrapped.engine, self._capture)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.states.append(whole_state(self._model))

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        pass

    def _capture(self) -> None:
        whole = [whole_gradient(parameter) for parameter in self._model.parameters()]
        self.gradients.append(torch.cat([gradient.detach().float().flatten().clone() for gradient in whole]))


def whole_state(model: Any) -> dict[str, torch.Tensor]:
    """Each parameter by itself, from the engine's optimizer where that has copies: what `GatheredParameters` hands out
    was seen to be half filled yet, on gloo, and a step that did not end leaves parameters in use."""
    from deepspeed.utils import safe_get_full_fp32_param

    whole = {}
    for name, parameter in model.named_parameters():
        copy = safe_get_full_fp32_param(parameter)
        whole[name] = (parameter.detach() if copy is None else copy.to(model.dtype)).clone()
    return whole
