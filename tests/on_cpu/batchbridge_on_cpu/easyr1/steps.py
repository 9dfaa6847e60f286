"""Keeps every optimizer step of the training processes where `BATCHBRIDGE_STEPS` asks for it, and builds the optimizer
that `BATCHBRIDGE_OPTIMIZER` names: "sgd" in place of AdamW, which hides uniform scaling, or "adamw" with the
epsilon of comparable trajectories. EasyR1's settings have neither.

`worker.actor.fsdp.use_orig_params` must be true: FSDP gives whole gradients of no other module.
Source: EasyR1 0.3.2 to 0.3.3.dev0 workers/actor/dp_actor.py, _optimizer_step, which clips and steps;
workers/fsdp_workers.py, _build_model_optimizer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from batchbridge.running.launch import call_after_import
from batchbridge.testing.equivalence import ADAM_EPSILON

HOOKS = {
    "verl.workers.actor.dp_actor": f"{__name__}:after_actor",
    "verl.workers.fsdp_workers": f"{__name__}:after_workers",
}


def start() -> None:
    """Installs the hooks in this process."""
    call_after_import(HOOKS)


def after_actor(module: Any) -> None:
    """Wraps the native optimizer step."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    from batchbridge.testing.snapshots import StepKeeper, flat, keeper

    native = module.DataParallelPPOActor._optimizer_step
    kept: list[StepKeeper | None] = []

    def optimizer_step(self: Any) -> Any:
        if not kept:
            kept.append(keeper(writes=torch.distributed.get_rank() == 0))
        if kept[0] is None:
            return native(self)
        actor = self.actor_module

        def gradient() -> torch.Tensor:
            with FSDP.summon_full_params(actor, writeback=False, with_grads=True):
                return flat(parameter.grad for parameter in actor.parameters())

        def values() -> torch.Tensor:
            with FSDP.summon_full_params(actor, writeback=False):
                return flat(actor.parameters())

        return kept[0].around(gradient, values, lambda: native(self))

    module.DataParallelPPOActor._optimizer_step = optimizer_step


def after_workers(module: Any) -> None:
    """Builds workers with the optimizer that is asked for."""
    asked = os.environ.get("BATCHBRIDGE_OPTIMIZER")
    if asked not in ("sgd", "adamw"):
        return
    native = module.FSDPWorker._build_model_optimizer

    def build(self: Any, *arguments: Any, **options: Any) -> Any:
        with optimizer(asked):
            return native(self, *arguments, **options)

    module.FSDPWorker._build_model_optimizer = build


@contextlib.contextmanager
def optimizer(name: str) -> Iterator[None]:
    """What builds AdamW in here gets SGD with the same learning rate and weight decay, or AdamW with `ADAM_EPSILON`."""
    import torch

    native = torch.optim.AdamW

    def build(parameters: Any, lr: float, weight_decay: float, **options: Any) -> Any:
        if name == "sgd":
            return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay)
        return native(parameters, lr=lr, weight_decay=weight_decay, **{**options, "eps": ADAM_EPSILON})

    torch.optim.AdamW = build
    try:
        yield
    finally:
        torch.optim.AdamW = native
