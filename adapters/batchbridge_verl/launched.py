"""Hooks of `batchbridge run`: the trainers that verl builds itself, in a Ray actor, are wrapped before they start.

They patch classes, which is right here alone: the process belongs to one launched run.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from batchbridge.launch import follow


def v1(module: ModuleType) -> None:
    """After verl.trainer.ppo.v1.trainer_base: every V1 trainer follows the launch when it is initialised."""
    before(module.PPOTrainer, "init")


def v0(module: ModuleType) -> None:
    """After verl.trainer.ppo.ray_trainer: every `RayPPOTrainer` follows the launch before its workers start."""
    before(module.RayPPOTrainer, "init_workers")


def before(cls: Any, method: str) -> None:
    """Every object of `cls` follows the launch before its `method` runs."""
    native = getattr(cls, method)

    @functools.wraps(native)
    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        if "batchbridge" in vars(self):  # wrapped already: by this function, or by the user's own hand
            return native(self, *arguments, **options)
        follow(self)
        patched = vars(self).get(method)  # the wrapping may have patched the very method that we stand in
        return native(self, *arguments, **options) if patched is None else patched(*arguments, **options)

    setattr(cls, method, wrapped)
