"""verl on the CPU, unmodified: import this module in every process, before verl chooses its device.

    VERL_USE_EXTERNAL_MODULES=batchbridge_verl.on_cpu.cpu VERL_ENGINE_DEVICE=cuda python -m verl.trainer.main_ppo ...

What it declares: a device `cpu` whose processes are placed by Ray's resource "GPU", before 0.9.0 "cpu": give
`ray.init` as many as there should be ranks. gloo instead of NCCL; memory is not pinned; the engine stays the one that
verl registers for CUDA.

Its own file: verl imports it by this name in every process.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")

import torch

import batchbridge_verl.on_cpu.patient_ray
import batchbridge_verl.on_cpu.unpadding

try:
    import verl.plugin.platform  # noqa: F401 - there since 0.9.0
except ModuleNotFoundError:
    import batchbridge_verl.on_cpu.without_platform
else:
    import batchbridge_verl.on_cpu.platform  # noqa: F401 - registers itself

# FSDP2 pins the reference policy's memory for a device that is not there.
torch.Tensor.pin_memory = lambda tensor, *arguments, **options: tensor
_native_init = torch.distributed.init_process_group


def _init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
    """verl asks for cpu:gloo,cpu:gloo here (0.8.0: cpu:gloo,cpu:nccl), which torch refuses."""
    if isinstance(backend, str):
        backend = ",".join(dict.fromkeys(backend.replace("nccl", "gloo").split(",")))
    return _native_init(backend, *arguments, **options)


torch.distributed.init_process_group = _init_process_group
