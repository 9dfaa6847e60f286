"""The rollout backend `scripted` as tests need it: import this module in every process beside `cpu`.

`BATCHBRIDGE_WEIGHTS`: folder where rank 0 leaves the weights that it is sent, by the rollouts done.
`BATCHBRIDGE_KILL`: `rank/step`: that training process kills itself after it has trained that optimizer step.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import verl.workers.rollout.base as base

from batchbridge import hookimpl
from batchbridge.contract import plugins
from batchbridge.running.launch import call_after_import
from batchbridge_verl.on_cpu.rollouts import ScriptedRollout


class KeepingRollout(ScriptedRollout):
    """Takes every weight that is sent, and keeps it where the test asks for it."""

    async def update_weights(self, weights: Any, **options: Any) -> None:
        kept = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        folder = os.environ.get("BATCHBRIDGE_WEIGHTS")
        if folder and os.environ.get("RANK", "0") == "0":
            Path(folder).mkdir(parents=True, exist_ok=True)
            torch.save(kept, Path(folder) / f"{options.get('global_steps', _sent['rollouts'])}.pt")


_sent: dict[str, int | None] = {"rollouts": None}
"""The rollouts done when weights are sent, where legacy workers do not pass them on."""


def after_legacy_workers(module: Any) -> None:
    """Has a legacy worker tell how many rollouts were done. Source: verl 0.7.1 AsyncActorRolloutRefWorker."""
    kind = module.AsyncActorRolloutRefWorker
    native = kind.update_weights

    @functools.wraps(native)
    async def update_weights(self: Any, global_steps: int | None = None) -> Any:
        _sent["rollouts"] = global_steps
        return await native(self, global_steps)

    kind.update_weights = update_weights


call_after_import({"verl.workers.fsdp_workers": f"{__name__}:after_legacy_workers"})


base._ROLLOUT_REGISTRY["scripted", "async"] = f"{__name__}.{KeepingRollout.__name__}"


class Killer:
    """Ends this process after an optimizer step; see the module."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("BATCHBRIDGE_KILL"):
    plugins.manager().register(Killer(), "batchbridge_verl_killer")
