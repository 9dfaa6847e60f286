"""OpenRLHF on the CPU, its files unedited: call `start` in a process before it imports torch or OpenRLHF.

What it declares: DeepSpeed's CPU accelerator and gloo, without its shared-memory kernel; "cuda" device
meshes are "cpu" ones; torch.cuda's current device is the CPU; ZeRO-3 waits for every gather of parameters (`_gathers`);
modules that need a GPU and are not installed are empty (`ABSENT`). Two things that the command line does not offer are
injected where the environment asks for them:

`BATCHBRIDGE_FLOAT32`: parameters and optimizer in float32, whatever `ds.param_dtype` says.
`BATCHBRIDGE_OPTIMIZER`: `sgd`, or `adamw` of torch (DeepSpeed's own compiles C++), in place of DeepSpeed's.

Source: openrlhf 0.10.4 to 0.11.2, deepspeed 0.19.1 to 0.19.6.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

ABSENT = ("vllm", "ring_flash_attn", "flash_attn")
"""Packages whose names OpenRLHF imports, and which decide nothing without ring attention and real engines; with packed
samples OpenRLHF takes padding out and in by functions of flash-attn's that need no GPU: `_padding` has them."""
MADE = ("vllm",)
"""Whose classes are made, and keep what they are given by name: sampling parameters."""
PADDING = "flash_attn.bert_padding"
"""Whose functions are given, see `_padding`."""
MISSING = "flash_attn.ops"
"""Missing even so: without it OpenRLHF takes torch's cross entropy."""
FLOAT32, OPTIMIZER = "BATCHBRIDGE_FLOAT32", "BATCHBRIDGE_OPTIMIZER"


def start(more: Mapping[str, Callable[[Any], None]] | None = None) -> None:
    """Installs the hooks and `more` (module: what is called with it after its import); called again it does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    hooks = {**HOOKS, **(more or {})}
    sys.meta_path.insert(0, _Finder(hooks))
    sys.meta_path.append(_Absent([name for name in ABSENT if importlib.machinery.PathFinder.find_spec(name) is None]))
    for name, hook in hooks.items():
        if name in sys.modules:
            hook(sys.modules[name])


# ---- what is different on the CPU


class _Device(str):
    """The CPU, that writes itself as a number: the replay buffer builds the name `cuda:{current_device()}`."""

    def __format__(self, specification: str) -> str:
        return "0"


def _torch(torch: Any) -> None:
    torch.cuda.current_device = lambda: _Device("cpu")
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, lambda *arguments, **options: None)


def _strategy(module: Any) -> None:
    native_mesh, native_config, native_eval = (
        getattr(module, name) for name in ("init_device_mesh", "get_train_ds_config", "get_eval_ds_config")
    )

    def mesh(device: str, *arguments: Any, **options: Any) -> Any:
        return native_mesh("cpu", *arguments, **options)

    def config(*arguments: Any, **options: Any) -> Any:
        made = native_config(*arguments, **options)
        if os.environ.get(FLOAT32):
            made["bf16"]["enabled"] = False
        optimizer, asked = made.get("optimizer"), os.environ.get(OPTIMIZER)
        if optimizer is not None and asked == "sgd":
            made["optimizer"] = {"type": "SGD", "params": {"lr": optimizer["params"]["lr"]}}
            made["zero_allow_untested_optimizer"] = True
        elif optimizer is not None and asked == "adamw":
            optimizer["params"] = {**optimizer["params"], "torch_adam": True}
        return made

    def of_reference(*arguments: Any, **options: Any) -> Any:
        made = native_eval(*arguments, **options)
        if os.environ.get(FLOAT32):
            made["bf16"]["enabled"] = False  # DeepSpeed would turn a reference that was loaded in float32 into bf16
        return made

    module.init_device_mesh, module.get_train_ds_config, module.get_eval_ds_config = mesh, config, of_reference


def _precision(module: Any) -> None:
    native = module.convert_to_torch_dtype

    def convert(name: str) -> Any:
        import torch

        return torch.float32 if os.environ.get(FLOAT32) else native(name)

    module.convert_to_torch_dtype = convert


def _gathers(module: Any) -> None:
    """ZeRO-3 starts several gathers of parameters together and waits for the last one alone: NCCL ends them in their
    order, gloo's threads do not, and a parameter that a checkpoint has just been read into is overwritten."""
    native, communication = module.Init._allgather_params_coalesced, module.dist
    start = communication.all_gather_into_tensor

    def gather(self: Any, *given: Any, **options: Any) -> None:
        begun: list[Any] = []

        def remembered(*arguments: Any, **named: Any) -> Any:
            begun.append(start(*arguments, **named))
            return begun[-1]

        communication.all_gather_into_tensor = remembered
        try:
            native(self, *given, **options)
        finally:
            communication.all_gather_into_tensor = start
        for one in begun:
            one.wait()

    module.Init._allgather_params_coalesced = gather


def _communication(module: Any) -> None:
    module.build_shm_op = lambda: None


def _distributions(module: Any) -> None:
    """transformers 5.7.0, which openrlhf 0.10.4 requires, asks which distribution a flash_attn comes from."""
    module.PACKAGE_DISTRIBUTION_MAPPING = {"flash_attn": ["none"], **module.PACKAGE_DISTRIBUTION_MAPPING}


HOOKS: Mapping[str, Callable[[Any], None]] = {
    "torch": _torch,
    "transformers.utils.import_utils": _distributions,
    "openrlhf.utils.utils": _precision,
    "openrlhf.utils.deepspeed.deepspeed": _strategy,
    "deepspeed.comm.torch": _communication,
    "deepspeed.runtime.zero.partition_parameters": _gathers,
}


def _padding(name: str) -> Any:
    """A function of flash-attn's bert_padding, which is plain torch: transformers' own, for where flash-attn is not
    installed. Raises `KeyError` for any other name."""
    if name == "index_first_axis":
        return lambda values, indices: values[indices]
    if name == "rearrange":
        return lambda values, pattern: values.flatten(0, 1)  # "b s ... -> (b s) ...", the only one
    import transformers.modeling_flash_attention_utils as flash

    return {"unpad_input": flash._unpad_input, "pad_input": flash._pad_input}[name]


# ---- finders


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a hook after its module was executed."""

    def __init__(self, hooks: Mapping[str, Callable[[Any], None]]) -> None:
        self._hooks = hooks
        self._finding: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None:
            return spec
        hook, native = self._hooks[fullname], spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            native(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages named. Every name of theirs is a class that does nothing, or that cannot be made: a run that
    came to flash attention would say so."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._names or fullname.startswith(MISSING):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if spec.name == PADDING:
                return _padding(name)

            def made(self: Any, *arguments: Any, **named: Any) -> None:
                if spec.name.partition(".")[0] not in MADE:
                    raise NotImplementedError(f"{spec.name}.{name} is called: {spec.name} is needed, and not installed")
                vars(self).update(named)

            return type(name, (), {"__init__": made})

        module.__getattr__ = missing  # type: ignore[method-assign]  # PEP 562
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None
