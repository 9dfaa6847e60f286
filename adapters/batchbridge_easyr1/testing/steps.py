"""Keeps every optimizer step of the training processes where `BATCHBRIDGE_STEPS` asks for it, and puts plain descent in
the place of AdamW, which hides uniform scaling, where `BATCHBRIDGE_OPTIMIZER` is "sgd": EasyR1's settings have none.

`worker.actor.fsdp.use_orig_params` must be true: FSDP gives whole gradients of no other module.
Source: EasyR1 0.3.2 to 0.3.3.dev0 workers/actor/dp_actor.py, _optimizer_step, which clips and steps;
workers/fsdp_workers.py, _build_model_optimizer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from batchbridge.launch import call_after_import

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

    from batchbridge.testing.snapshots import Keeper, flat, keeper

    native = module.DataParallelPPOActor._optimizer_step
    kept: list[Keeper | None] = []

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
    """Builds workers with SGD where it is asked for."""
    if os.environ.get("BATCHBRIDGE_OPTIMIZER") != "sgd":
        return
    native = module.FSDPWorker._build_model_optimizer

    def build(self: Any, *arguments: Any, **options: Any) -> Any:
        with plain_descent():
            return native(self, *arguments, **options)

    module.FSDPWorker._build_model_optimizer = build


@contextlib.contextmanager
def plain_descent() -> Iterator[None]:
    """What builds AdamW in here gets SGD, with the same learning rate and weight decay."""
    import torch

    native = torch.optim.AdamW
    torch.optim.AdamW = lambda parameters, lr, weight_decay, **options: torch.optim.SGD(
        parameters, lr=lr, weight_decay=weight_decay
    )
    try:
        yield
    finally:
        torch.optim.AdamW = native
