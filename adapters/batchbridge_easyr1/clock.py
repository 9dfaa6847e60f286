"""The learning-rate schedule of an enforced run: over how many ticks it goes.

Its own file: the only code that makes a schedule; tests change it alone.
"""

from __future__ import annotations

from typing import Any


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
