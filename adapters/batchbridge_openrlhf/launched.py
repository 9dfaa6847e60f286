"""The hooks of `batchbridge run`: the `PPOTrainer` or `PPOTrainerAsync` that OpenRLHF builds in a Ray actor is wrapped
as soon as it stands.

They patch classes, which is right here alone: the process belongs to one launched run. `PPOTrainer` itself travels by
value to its actor; its base class is imported there, and is what is patched. The base's constructor is the last thing
that `PPOTrainer`'s own one calls. Source: openrlhf 0.11.2 ppo_trainer.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from batchbridge.kit import follow


def driver(module: ModuleType) -> None:
    """The hook into openrlhf.trainer.ppo_trainer: every `PPOTrainer` follows the launch. Half of an asynchronous
    trainer does not: the whole one does."""
    _followed(module.BasePPOTrainer, lambda trainer: not trainer.args.train.async_enable)


def asynchronous(module: ModuleType) -> None:
    """The hook into openrlhf.trainer.ppo_trainer_async, in the command's own process: every `PPOTrainerAsync` follows
    the launch. Its class travels by value, with what is set here."""
    _followed(vars(module)["PPOTrainerAsync"].__ray_metadata__.modified_class)


def _followed(kind: Any, only: Callable[[Any], bool] = lambda trainer: True) -> None:
    """Every object of a class follows the launch once it is built, of these those for which `only` is true."""
    native = kind.__init__

    @functools.wraps(native)
    def construct(self: Any, *arguments: Any, **options: Any) -> None:
        native(self, *arguments, **options)
        if only(self):
            follow(self)

    kind.__init__ = construct
