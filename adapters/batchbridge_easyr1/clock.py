"""The learning-rate schedule of an enforced run: when it moves, and over how many ticks.

Its own file: the only code that moves a learning rate; tests change it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TickedSchedule:
    """A learning-rate schedule that moves when `due` says so."""

    def __init__(self, native: Any, due: Callable[[], bool]) -> None:
        self._native, self._due = native, due

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def step(self) -> None:
        """The native clock's step, which EasyR1 itself calls after every call of `update_policy`."""
        if self._due():
            self._native.step()


def schedule_of(optim: Any, optimizer: Any, ticks: int) -> Any:
    """EasyR1's own schedule over `ticks` ticks. Source: EasyR1 fsdp_workers._build_model_optimizer."""
    from verl.utils import torch_functional

    warmup = optim.lr_warmup_steps
    warmup = int(optim.lr_warmup_ratio * ticks) if warmup is None else warmup
    if getattr(optim, "lr_scheduler_type", "constant") == "constant":
        return torch_functional.get_constant_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=warmup)
    return torch_functional.get_cosine_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=warmup,
        num_training_steps=ticks,
        min_lr_ratio=optim.min_lr_ratio,
        num_cycles=0.5,
    )
