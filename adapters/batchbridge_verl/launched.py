"""Hooks of `batchbridge run`: the trainers that verl builds itself, in a Ray actor, are wrapped before they start.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit import follow_before


def v1(module: ModuleType) -> None:
    """The hook into verl.trainer.ppo.v1.trainer_base: every V1 trainer follows the launch when it is initialised."""
    follow_before(module.PPOTrainer, "init")


def v0(module: ModuleType) -> None:
    """The hook into verl.trainer.ppo.ray_trainer: every `RayPPOTrainer` follows the launch before its workers start."""
    follow_before(module.RayPPOTrainer, "init_workers")


def one_step_off(module: ModuleType) -> None:
    """The hook into verl.experimental.one_step_off_policy.ray_trainer: its trainer, whose `init_workers` is not
    `RayPPOTrainer`'s, follows the launch, too."""
    follow_before(module.OneStepOffRayTrainer, "init_workers")


def fully_async(module: ModuleType) -> None:
    """The hook into verl.experimental.separation.ray_trainer, whose class the trainer of fully_async_policy is made
    from in a process of its own: that trainer follows the launch once it knows its rollouter (`queued`)."""
    owner = module.SeparateRayPPOTrainer
    native = owner._init_resource_pools

    @functools.wraps(native)
    def begun(trainer: Any) -> Any:
        from batchbridge_verl.queued import follow_with_rollouter, is_fully_async

        if is_fully_async(trainer):
            follow_with_rollouter(trainer)
        return native(trainer)

    owner._init_resource_pools = begun


def sync(module: ModuleType) -> None:
    """The hook into verl.trainer.ppo.padding_utils: the trainer of verl 0.8.0's main_ppo_sync, the V1 trainer's
    forerunner, is not followed."""
    if importlib.util.find_spec("verl.trainer.ppo.v1") is None:
        reason = "the trainer of verl.trainer.main_ppo_sync is not followed; start verl.trainer.main_ppo"
        raise CannotAttach({"main_ppo_sync": reason})
