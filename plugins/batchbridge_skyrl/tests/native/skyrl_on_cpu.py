"""What SkyRL's FSDP workers need of torch to train on a CPU; no line of SkyRL is replaced. See the plugin's README."""

from __future__ import annotations

import sys
import types
import typing
from importlib.machinery import ModuleSpec
from typing import Any

import typing_extensions

ABSENT = ("flash_attn", "flash_attn.bert_padding")
"""Modules that are imported where nothing of them is called, with `remove_microbatch_padding` and `flash_attn` off."""


class _Empty:
    """Finds `ABSENT`, whose attributes are empty classes."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in ABSENT else None  # type: ignore[arg-type]  # a loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        def attribute(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = attribute  # type: ignore[method-assign]  # PEP 562
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def setup() -> None:
    """Called in the driver, and by Ray in each worker before anything else."""
    import torch
    import torch.distributed.device_mesh as meshes
    from torch import distributed

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc,assignment]  # pydantic asks for it before 3.12
    sys.meta_path.append(_Empty())  # type: ignore[arg-type]  # a finder and loader in one
    cpu, mesh, empty, group = torch.device("cpu"), meshes.init_device_mesh, torch.empty, distributed.init_process_group

    def on_cpu(*args: Any, **named: Any) -> Any:
        return empty(*args, **{**named, "device": "cpu"} if named.get("device") == "cuda" else named)

    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment,return-value]
    for name in ("empty_cache", "synchronize", "set_device", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *args, **named: None)
    torch.Tensor.cuda = lambda self, *args, **named: self  # type: ignore[assignment,method-assign]
    torch.empty = on_cpu
    meshes.init_device_mesh = distributed.init_device_mesh = lambda kind, *args, **named: mesh("cpu", *args, **named)
    distributed.init_process_group = lambda backend=None, *args, **named: group("gloo", *args, **named)
