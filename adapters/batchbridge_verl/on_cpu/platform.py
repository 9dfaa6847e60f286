"""The CPU as one of verl's platforms (0.9.0 on). Source: verl 0.9.1 plugin/platform/platform_base.py,
platform_manager.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase

from batchbridge_verl.on_cpu.device import Device


@platform_manager.PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl is untyped here
    """One process, one rank, no accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = Device("batchbridge_cpu")

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
