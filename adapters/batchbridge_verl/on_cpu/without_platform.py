"""verl 0.8.0 on the CPU: it has no platforms. Its functions find no CUDA and say "cpu" of themselves; what they lack is
what torch.cpu and its engine registry lack. Source: verl 0.8.0 utils/device.py, workers/engine/base.py,
workers/engine/fsdp/transformer_impl.py get_per_tensor_param.

Its own file: only 0.8.0 needs it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.utils import device
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from batchbridge_verl.on_cpu.device import Device


class _Torch(types.ModuleType):
    """torch, whose `cpu` answers what verl asks of `torch.cuda`."""

    cpu = Device("batchbridge_cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


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
