"""verl on the CPU, unmodified: import this module in every process, before verl chooses its device.

    VERL_USE_EXTERNAL_MODULES=batchbridge_verl.testing.cpu VERL_ENGINE_DEVICE=cuda python -m verl.trainer.main_ppo ...

For tests. What it declares: a platform `cpu` whose processes are placed by Ray's resource "GPU" (give `ray.init` as
many as there shall be ranks), gloo instead of NCCL. The engine stays the one that verl registers for CUDA.
Source: verl 0.9.1 plugin/platform/platform_base.py, platform_manager.py.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")

import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


class _Device(types.ModuleType):
    """What verl calls on `torch.cuda`: torch.cpu where that has it, else nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        answers = {
            "mem_get_info": (8 << 30, 16 << 30),
            "get_device_name": "cpu",
            **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), 0),
        }
        if name == "get_rng_state":
            return lambda *arguments, **options: torch.get_rng_state()
        if name == "set_rng_state":
            return lambda state, *arguments, **options: torch.set_rng_state(state)
        return lambda *arguments, **options: answers.get(name)


@platform_manager.PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl is untyped here
    """One process, one rank, no accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("batchbridge_cpu")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None: ...

    def synchronize(self, index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, message: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


platform_manager._current_platform = PlatformCPU()

_native_init = torch.distributed.init_process_group


def _init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
    """verl asks for cpu:gloo,cpu:gloo here, which torch refuses."""
    if isinstance(backend, str):
        backend = ",".join(dict.fromkeys(backend.split(",")))
    return _native_init(backend, *arguments, **options)


torch.distributed.init_process_group = _init_process_group
