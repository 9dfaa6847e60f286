"""Keeps every optimizer step of the training processes: import this module in every process beside `cpu`. A critic's
are kept beside the policy's, in a folder of their own, whose engine is in the same process.

Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py, FSDPEngine.optimizer_step, and of 0.7.1's legacy workers
workers/actor/dp_actor.py, DataParallelPPOActor._optimizer_step: both clip and step.
"""

from __future__ import annotations

import functools
from typing import Any

from batchbridge.running.launch import call_after_import

HOOKS = {
    "verl.workers.engine.fsdp.transformer_impl": f"{__name__}:after_engine",
    "verl.workers.actor.dp_actor": f"{__name__}:after_legacy_actor",
}


def after_engine(module: Any) -> None:
    """Wraps the engine's optimizer step where `BATCHBRIDGE_STEPS` asks for it."""
    _keep(module.FSDPEngine, "optimizer_step", "module")


def after_legacy_actor(module: Any) -> None:
    """Wraps the legacy worker's optimizer step, likewise."""
    _keep(module.DataParallelPPOActor, "_optimizer_step", "actor_module")


def _keep(cls: type, name: str, model: str) -> None:
    import torch

    from batchbridge.testing.snapshots import StepKeeper, flat
    from batchbridge_on_cpu.valuing import keeper_of

    native = getattr(cls, name)
    kept: dict[str, StepKeeper | None] = {}

    @functools.wraps(native)
    def step(self: Any) -> Any:
        trained = getattr(self, model)
        keeper = keeper_of(trained, kept, writes=torch.distributed.get_rank() == 0)
        if keeper is None:
            return native(self)
        parameters = list(trained.parameters())
        return keeper.around(
            lambda: flat(parameter.grad for parameter in parameters), lambda: flat(parameters), lambda: native(self)
        )

    setattr(cls, name, step)


call_after_import(HOOKS)
