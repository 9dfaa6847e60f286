"""A trainer that is derived from TRL's, as a package does: its own accelerator, schedule and rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from trl import GRPOTrainer

Does = Callable[[Any], Any]


class Derived(GRPOTrainer):  # type: ignore[misc]  # trl is untyped here
    """The trainer; what its methods do beside: before, after, rewarded."""

    scored = 0
    before: Does = staticmethod(lambda trainer: None)
    after: Does = staticmethod(lambda trainer: None)
    rewarded: Callable[..., Any] = staticmethod(lambda trainer, words, rewards: rewards)

    def create_accelerator_and_postprocess(self) -> None:
        """Accelerate's own, and a note."""
        super().create_accelerator_and_postprocess()
        self.has_accelerator = True

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A schedule that transformers has not."""
        self.before(self)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5 / (1 + step))
        self.after(self)
        return self.lr_scheduler

    def _calculate_rewards(self, *words: Any) -> Any:
        self.scored += 1
        return self.rewarded(self, words, super()._calculate_rewards(*words))


def derived(trainer: Any, **does: Any) -> Any:
    """A trainer of TRL's as one of the derived class, whose methods do something more."""
    trainer.__class__ = Derived
    for method, does_it in does.items():
        setattr(trainer, method, does_it)
    return trainer
