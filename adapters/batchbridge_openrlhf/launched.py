"""The hook of `batchbridge run`: the `PPOTrainer` that OpenRLHF builds in a Ray actor is wrapped as soon as it stands.

It patches a class, which is right here alone: the process belongs to one launched run. `PPOTrainer` itself travels by
value to its actor; its base class is imported there, and is what is patched. The base's constructor is the last thing
that `PPOTrainer`'s own one calls. Source: openrlhf 0.11.2 ppo_trainer.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from batchbridge.kit import follow


def driver(module: ModuleType) -> None:
    """After openrlhf.trainer.ppo_trainer: every `PPOTrainer` follows the launch."""
    base: Any = module.BasePPOTrainer
    native = base.__init__

    @functools.wraps(native)
    def construct(self: Any, *arguments: Any, **options: Any) -> None:
        native(self, *arguments, **options)
        follow(self)

    base.__init__ = construct
