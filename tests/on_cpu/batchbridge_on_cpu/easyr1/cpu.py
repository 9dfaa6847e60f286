"""EasyR1 on the CPU, unmodified: call `start` in every process before EasyR1 or torch is imported.

For tests. What it declares: modules that need a GPU or a decoder of videos are empty (`ABSENT`); torch.cuda answers as
a machine without one can; gloo instead of NCCL; models load with eager attention; Ray's resource "GPU" places processes
(give `ray.init` as many as there should be ranks); rollouts are scripted (`rollouts`) where vLLM's would be.
Source: EasyR1 0.3.2 to 0.3.3.dev0 workers/fsdp_workers.py, utils/seqlen_balancing.py, single_controller/ray/base.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.hookspecs import hookimpl
from batchbridge.running.launch import call_after_import

ABSENT = ("vllm", "msgspec", "qwen_vl_utils", "wandb")
HERE = __name__
HOOKS = {
    "ray": f"{HERE}:after_ray",
    "ray._private.node": f"{HERE}:after_node",
    "tensordict": f"{HERE}:after_tensordict",
    "torch": f"{HERE}:after_torch",
    "verl.utils.checkpoint.fsdp_checkpoint_manager": f"{HERE}:after_checkpoints",
    "verl.utils.seqlen_balancing": f"{HERE}:after_balancing",
    "verl.models.transformers.flash_attention_utils": "batchbridge_on_cpu.easyr1.packed:after_attention",
    "verl.utils.tokenizer": "batchbridge_on_cpu.easyr1.pictures:after_tokenizer",
    "verl.workers.actor.dp_actor": "batchbridge_on_cpu.easyr1.packed:after_actor",
    "verl.workers.fsdp_workers": f"{HERE}:after_workers",
    "verl.single_controller.ray.base": f"{HERE}:after_groups",
}


class _Anything:
    def __init__(self, *arguments: Any, **options: Any) -> None: ...


class _Empty(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - a module's attribute, not a class's default

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (_Anything,), {}))
        return getattr(self, name)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def start() -> None:
    """Installs the hooks; called again, it does nothing."""
    if any(isinstance(finder, _Absent) for finder in sys.meta_path):
        return
    sys.meta_path.append(_Absent())
    call_after_import(HOOKS)
    import importlib.metadata as metadata

    native = metadata.version
    metadata.version = lambda distribution_name: "0.8.4" if distribution_name == "vllm" else native(distribution_name)


def after_ray(ray: Any) -> None:
    """`BATCHBRIDGE_CPU_RANKS`: Ray's "GPUs"; `BATCHBRIDGE_CPU_RAY`: its folder. EasyR1's entry names neither."""
    native = ray.init
    options = {
        "num_cpus": 14,  # of Ray's bookkeeping: actors wait for what they ask for
        "num_gpus": int(os.environ.get("BATCHBRIDGE_CPU_RANKS", "0")),
        "include_dashboard": False,
        "object_store_memory": 200_000_000,
        "_temp_dir": os.environ.get("BATCHBRIDGE_CPU_RAY"),
    }
    ray.init = lambda *arguments, **own: native(*arguments, **{**options, **own})


def after_torch(torch: Any) -> None:
    """torch.cuda, as far as EasyR1 calls it; gloo."""
    torch.set_num_threads(1)
    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.get_device_name = lambda *arguments: "cpu"
    cuda.mem_get_info = lambda *arguments: (0, 0)
    cuda.max_memory_allocated = cuda.max_memory_reserved = lambda *arguments: 0
    cuda.get_rng_state = lambda *arguments: torch.get_rng_state()
    cuda.set_rng_state = lambda *arguments: None
    native = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend=None, **options: native(backend="gloo", **options)


def after_tensordict(module: Any) -> None:
    """A batch that is sent to the device stays on the CPU: EasyR1 sends it where ranks share rows (Ulysses)."""
    module.TensorDictBase.cuda = lambda batch, *arguments, **options: batch


def after_checkpoints(module: Any) -> None:
    """Where this module puts an adapter's weights together: on the CPU."""
    import torch

    class OnCpu(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def device(self, *arguments: Any) -> Any:
            return torch.device("cpu")

    module.torch = OnCpu("torch")


def after_balancing(module: Any) -> None:
    """`torch.tensor(..., device="cuda")` of this module makes a tensor on the CPU."""
    import torch

    class OnCpu(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def tensor(self, *arguments: Any, **options: Any) -> Any:
            return torch.tensor(*arguments, **{name: value for name, value in options.items() if name != "device"})

    module.torch = OnCpu("torch")
    if os.environ.get("BATCHBRIDGE_CUTS"):
        module.rearrange_micro_batches = _recorded(module.rearrange_micro_batches)


def _recorded(native: Any) -> Any:
    """`BATCHBRIDGE_CUTS`: folder where every process leaves a line for each batch that EasyR1 cuts by tokens; see
    `batchbridge_on_cpu.verl.cuts`."""
    import torch

    folder = Path(os.environ["BATCHBRIDGE_CUTS"])

    def rearrange_micro_batches(batch: Any, max_token_len: int, *arguments: Any, **options: Any) -> Any:
        made = native(batch, max_token_len, *arguments, **options)
        tokens = [part["attention_mask"].sum(-1).tolist() for part in made[0]]
        line = {"train": torch.is_grad_enabled(), "budget": max_token_len, "tokens": tokens}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return made

    return rearrange_micro_batches


def after_node(module: Any) -> None:
    """Ray's 30 seconds for the start of its node, ten times as long: processes start slowly on a busy machine."""
    import time

    module.time = types.SimpleNamespace(**vars(time))
    module.time.monotonic = lambda: time.monotonic() / 10


def after_groups(module: Any) -> None:
    """The register centre's deadline of 120 seconds, ten times as long, for the same reason."""
    import time

    module.time = types.SimpleNamespace(**vars(time))
    module.time.sleep = lambda seconds: time.sleep(10 * seconds)


def after_workers(module: Any) -> None:
    """Meshes of CPUs, eager attention but where padding is left out, scripted rollouts."""
    from batchbridge_on_cpu.easyr1 import packed, rollouts

    mesh = module.init_device_mesh
    module.init_device_mesh = lambda device, **options: mesh("cpu", **options)
    module.apply_ulysses_patch = packed.apply_ulysses_patch
    for name in ("AutoModelForCausalLM", "AutoModelForImageTextToText"):
        setattr(module, name, Loads(name))
    module.vLLMRollout = rollouts.ScriptedRollout
    module.FSDPVLLMShardingManager = rollouts.Sharding
    if os.environ.get("BATCHBRIDGE_KILL"):
        from batchbridge.contract import plugins

        plugins.manager().register(Killer(), "batchbridge_easyr1_killer")


class Loads:
    """In place of a class of transformers that loads models; Ray sends it between processes by the class's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _model_mapping(self) -> Any:
        import transformers

        return getattr(transformers, self._name)._model_mapping

    def from_pretrained(self, path: str, **options: Any) -> Any:
        """On the CPU, with eager attention; see `packed`."""
        import transformers

        from batchbridge_on_cpu.easyr1 import packed

        options.pop("device_map", None)
        native = getattr(transformers, self._name)
        return packed.without_padding(native.from_pretrained(path, **{**options, "attn_implementation": "eager"}))


class Killer:
    """`BATCHBRIDGE_KILL`: `rank/step`: that training process kills itself after it has trained that optimizer step."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)
