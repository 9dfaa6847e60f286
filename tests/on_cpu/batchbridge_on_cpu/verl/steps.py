"""Keeps every optimizer step of the training processes: import this module in every process beside `cpu`. A critic's
are kept beside the policy's, in a folder of their own, whose engine is in the same process.

Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py, FSDPEngine.optimizer_step, which clips and steps.
"""

from __future__ import annotations

from typing import Any

from batchbridge.running.launch import call_after_import

HOOKS = {"verl.workers.engine.fsdp.transformer_impl": f"{__name__}:after_engine"}


def after_engine(module: Any) -> None:
    """Wraps the native optimizer step where `BATCHBRIDGE_STEPS` asks for it."""
    import torch

    from batchbridge.testing.snapshots import StepKeeper, flat
    from batchbridge_on_cpu.valuing import keeper_of

    native = module.FSDPEngine.optimizer_step
    kept: dict[str, StepKeeper | None] = {}

    def optimizer_step(self: Any) -> Any:
        keeper = keeper_of(self.module, kept, writes=torch.distributed.get_rank() == 0)
        if keeper is None:
            return native(self)
        parameters = list(self.module.parameters())
        return keeper.around(
            lambda: flat(parameter.grad for parameter in parameters), lambda: flat(parameters), lambda: native(self)
        )

    module.FSDPEngine.optimizer_step = optimizer_step


call_after_import(HOOKS)
