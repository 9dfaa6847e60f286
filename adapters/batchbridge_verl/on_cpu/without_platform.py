"""verl before 0.9.0 on the CPU: it has no platforms. Its functions find no CUDA and say "cpu" of themselves; what they
lack is what torch.cpu and its engine registry lack. 0.7.1 runs every model in bfloat16, whatever `mixed_precision`
says: here in float32, so that rounding is no part of what is compared. Source: verl 0.7.1 and 0.8.0 utils/device.py,
workers/engine/base.py, workers/engine/fsdp/transformer_impl.py get_per_tensor_param, forward_step.

Its own file: only releases before 0.9.0 need it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import verl
from verl.utils import device
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from batchbridge_verl.on_cpu.device import Device
from batchbridge_verl.settings import holds


class _Torch(types.ModuleType):
    """torch, whose `cpu` answers what verl asks of `torch.cuda`."""

    cpu = Device("batchbridge_cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Float32(_Torch):
    """torch without the automatic casts that 0.7.1 asks for."""

    @staticmethod
    def autocast(*arguments: Any, **options: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _weights(engine: Any, *arguments: Any, **options: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
    """The weights as they are trained: 0.8.0 rounds sharded ones to bfloat16 on their way to the sampler."""
    weights = engine.module.state_dict()
    return ((name, getattr(value, "full_tensor", lambda value=value: value)()) for name, value in weights.items()), None


device.torch = _Torch("torch")
for _backends in EngineRegistry._engines.values():
    for _devices in _backends.values():
        if "cuda" in _devices:
            _devices.setdefault("cpu", _devices["cuda"])
FSDPEngine.get_per_tensor_param = _weights
if holds("<0.8.0", verl.__version__):
    transformer_impl.torch = _Float32("torch")
