"""Open-Instruct on the CPU, its files unedited: call `start` in a process before it imports torch or open_instruct.

For tests. What it declares: DeepSpeed's CPU accelerator without its compiled kernel, gloo for NCCL; torch.cuda's device
is the CPU; packages that need a GPU or belong to an engine are empty (`ABSENT`); nothing is compiled; models load with
eager attention, or with that of `packed` where flash attention is asked for. Two things that the command line does not
offer are injected: float32 instead of bf16, always, and the optimizer that `BATCHBRIDGE_OPTIMIZER` names, `sgd`, or
`adamw` with the epsilon of comparable trajectories.

Source: open-instruct e6c3044 grpo_fast.py, model_utils.py, utils.py; deepspeed 0.19.6.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchbridge.running.launch import call_after_import
from batchbridge.testing.equivalence import ADAM_EPSILON
from batchbridge_on_cpu.open_instruct import packed

ABSENT = ("vllm", "flash_attn", "bitsandbytes", "liger_kernel")
"""What open_instruct imports and a training step on packed rows does not need."""
OPTIMIZER = "BATCHBRIDGE_OPTIMIZER"
HERE = __name__
HOOKS = {
    "torch": f"{HERE}:after_torch",
    "deepspeed.comm.torch": f"{HERE}:after_communication",
    "mcp.client.streamable_http": f"{HERE}:after_mcp",
    "vllm.v1.kv_cache_interface": f"{HERE}:after_vllm_caches",
    "open_instruct.utils": f"{HERE}:after_utils",
    "open_instruct.model_utils": f"{HERE}:after_models",
    "open_instruct.grpo_fast": f"{HERE}:after_script",
    "transformers.modeling_utils": "batchbridge_on_cpu.open_instruct.packed:after_models",
}


class _Anything:
    def __init__(self, *arguments: Any, **options: Any) -> None: ...


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)  # no class of ours: Ray sends modules by name

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            setattr(module, name, type(name, (_Anything,), {"__module__": spec.name}))
            return getattr(module, name)

        module.__getattr__ = missing  # type: ignore[method-assign]  # PEP 562
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def start(more: Mapping[str, str] | None = None) -> None:
    """Installs the hooks and `more` (as `HOOKS`); called again, it does nothing."""
    if any(isinstance(finder, _Absent) for finder in sys.meta_path):
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    sys.meta_path.insert(0, _Absent())
    call_after_import({**HOOKS, **(more or {})})


def after_torch(torch: Any) -> None:
    """torch.cuda, as far as the training step calls it; gloo."""
    torch.set_num_threads(1)
    for name in ("set_device", "manual_seed", "empty_cache"):
        setattr(torch.cuda, name, lambda *arguments, **options: None)
    native = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend=None, **options: native(backend="gloo", **options)


def after_communication(module: Any) -> None:
    """Without the shared-memory kernel, which is compiled."""
    module.build_shm_op = lambda: None


def after_mcp(module: Any) -> None:
    """Open-Instruct wants mcp 1's name."""
    if not hasattr(module, "streamablehttp_client"):
        module.streamablehttp_client = module.streamable_http_client


def after_vllm_caches(module: Any) -> None:
    """What open_instruct.vllm_utils changes of vLLM when it is imported."""

    @dataclass
    class MambaSpec:
        dtypes: Any = None

    module.MambaSpec = MambaSpec


def after_utils(module: Any) -> None:
    """DeepSpeed's configuration asks for float32; a script that begins is reached as its module would be; figures of
    utilisation, which the script prints, are those of a device that it knows."""
    for name in ("get_train_ds_config", "get_eval_ds_config"):
        setattr(module, name, _in_float32(getattr(module, name)))
    native, complete = module.check_oe_eval_internal, module.ModelDims.__post_init__

    @functools.wraps(native)
    def begun() -> None:
        after_script(sys.modules["__main__"])
        native()

    def named(self: Any) -> None:
        self.device_name = self.device_name or "h100"
        complete(self)

    module.check_oe_eval_internal, module.ModelDims.__post_init__ = begun, named


def _in_float32(native: Any) -> Any:
    def made(*arguments: Any, **options: Any) -> Any:
        found = native(*arguments, **{**options, "bf16": False})
        (found[0] if isinstance(found, tuple) else found)["zero_allow_untested_optimizer"] = True
        return found

    return made


def after_models(module: Any) -> None:
    """The reference policy is loaded in float32, on the CPU."""
    module.AutoModelForCausalLM = module.transformers.AutoModelForCausalLM = _Loader(
        module.transformers.AutoModelForCausalLM
    )


class _Around:
    """Another object with some things changed; Ray sends it with the script's classes."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __reduce__(self) -> Any:
        return type(self), (self._native,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class _Loader(_Around):
    """`AutoModelForCausalLM`, float32 and eager on the CPU."""

    def from_pretrained(self, *arguments: Any, **options: Any) -> Any:
        """As transformers'."""
        import torch

        asked = options.get("attn_implementation")
        options = {name: value for name, value in options.items() if name != "device_map"}
        made = self._native.from_pretrained(
            *arguments, **{**options, "dtype": torch.float32, "attn_implementation": "eager"}
        )
        if asked == packed.NAME:
            made.config._attn_implementation = packed.NAME
        return made


def after_script(module: Any) -> None:
    """The policy in float32, on the CPU, and another optimizer where the environment asks for it."""
    module.AutoModelForCausalLM = _Loader(module.AutoModelForCausalLM)
    module.torch = _OnCpu(module.torch)


class _OnCpu(_Around):
    """torch, whose devices are the CPU."""

    def __getattr__(self, name: str) -> Any:
        if name == "device":
            return lambda *arguments: self._native.device("cpu")
        asked = os.environ.get(OPTIMIZER)
        if name == "optim" and asked in ("sgd", "adamw"):
            optim = self._native.optim

            def build(parameters: Any, lr: float, **options: Any) -> Any:
                if asked == "sgd":
                    return optim.SGD(parameters, lr)
                return optim.AdamW(parameters, lr, **{**options, "eps": ADAM_EPSILON})

            return types.SimpleNamespace(AdamW=build)
        return getattr(self._native, name)
