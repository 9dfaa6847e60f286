"""Keeps every optimizer step of the training processes: import this module in every process beside `cpu`.

Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py, FSDPEngine.optimizer_step, which clips and steps.
"""

from __future__ import annotations

from typing import Any

from batchbridge.running.launch import call_after_import

HOOKS = {"verl.workers.engine.fsdp.transformer_impl": f"{__name__}:after_engine"}


def after_engine(module: Any) -> None:
    """Wraps the native optimizer step where `BATCHBRIDGE_STEPS` asks for it."""
    import torch

    from batchbridge.testing.snapshots import Keeper, flat, keeper

    native = module.FSDPEngine.optimizer_step
    kept: list[Keeper | None] = []

    def optimizer_step(self: Any) -> Any:
        if not kept:
            kept.append(keeper(writes=torch.distributed.get_rank() == 0))
        if kept[0] is None:
            return native(self)
        parameters = list(self.module.parameters())
        return kept[0].around(
            lambda: flat(parameter.grad for parameter in parameters), lambda: flat(parameters), lambda: native(self)
        )

    module.FSDPEngine.optimizer_step = optimizer_step


call_after_import(HOOKS)
