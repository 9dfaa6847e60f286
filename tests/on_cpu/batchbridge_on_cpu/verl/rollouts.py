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
import verl
import verl.workers.rollout.base as base

from batchbridge import hookimpl
from batchbridge.contract import plugins
from batchbridge.running.launch import call_after_import
from batchbridge_verl.on_cpu.rollouts import ScriptedRollout
from batchbridge_verl.settings import holds


class KeepingRollout(ScriptedRollout):
    """Takes every weight that is sent, and keeps it where the test asks for it."""

    async def update_weights(self, weights: Any, **options: Any) -> None:
        kept = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        done = options.get("global_steps", _sent["rollouts"])
        if done is not None:
            _keep(kept, done)


def _keep(weights: Mapping[str, torch.Tensor], rollouts: int) -> None:
    """Leaves the weights after `rollouts` rollouts where the test asks for them."""
    folder = os.environ.get("BATCHBRIDGE_WEIGHTS")
    if folder and os.environ.get("RANK", "0") == "0":
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(weights, Path(folder) / f"{rollouts}.pt")


_sent: dict[str, int | None] = {"rollouts": None}
"""The rollouts done when weights are sent, where legacy workers do not pass them on."""


def after_legacy_workers(module: Any) -> None:
    """Has a legacy worker tell how many rollouts were done. Source: verl 0.7.1 AsyncActorRolloutRefWorker."""
    kind = module.AsyncActorRolloutRefWorker
    if not hasattr(kind, "update_weights"):
        module.ActorRolloutRefWorker.keep_weights = _keeping()
        # gloo gathers no scalar into a vector, as this does with the seconds that generation took.
        module.topk_reduce_ratio_min_max = lambda seconds, *_: (0.0, seconds, seconds)
        return
    native = kind.update_weights

    @functools.wraps(native)
    async def update_weights(self: Any, global_steps: int | None = None) -> Any:
        _sent["rollouts"] = global_steps
        return await native(self, global_steps)

    kind.update_weights = update_weights


def _keeping() -> Any:
    """The method with which a legacy worker before 0.7.1, which sends weights without a number, keeps them."""
    from verl.single_controller.base.decorator import Dispatch, register

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]  # verl is untyped here
    def keep_weights(self: Any, rollouts: int) -> None:
        weights = self.actor_module_fsdp.state_dict()
        whole = {
            name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in weights.items()
        }
        _keep({name: value.detach().cpu().clone() for name, value in whole.items()}, rollouts)

    return keep_weights


def after_trainer(module: Any) -> None:
    """Has a trainer before 0.7.1 ask for the weights at the start of every rollout, and after the last one. Source:
    verl 0.6.1 and 0.7.0 RayPPOTrainer.fit."""
    kind = module.RayPPOTrainer
    if holds(">=0.7.1", verl.__version__):
        return
    native_start, native_fit = kind._start_profiling, kind.fit

    def ask(trainer: Any) -> None:
        if os.environ.get("BATCHBRIDGE_WEIGHTS"):
            trainer.actor_rollout_wg.keep_weights(trainer.global_steps - 1)

    @functools.wraps(native_start)
    def start_profiling(self: Any, *arguments: Any, **options: Any) -> Any:
        ask(self)
        return native_start(self, *arguments, **options)

    @functools.wraps(native_fit)
    def fit(self: Any) -> None:
        native_fit(self)
        ask(self)

    kind._start_profiling, kind.fit = start_profiling, fit


call_after_import(
    {
        "verl.workers.fsdp_workers": f"{__name__}:after_legacy_workers",
        "verl.trainer.ppo.ray_trainer": f"{__name__}:after_trainer",
    }
)


base._ROLLOUT_REGISTRY["scripted", "async"] = f"{__name__}.{KeepingRollout.__name__}"
base._ROLLOUT_REGISTRY["scripted", "sync"] = "batchbridge_on_cpu.verl.in_workers.PlayingRollout"  # before 0.7.0


class Killer:
    """Ends this process after an optimizer step; see the module."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("BATCHBRIDGE_KILL"):
    plugins.manager().register(Killer(), "batchbridge_verl_killer")
