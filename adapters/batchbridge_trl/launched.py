"""The hooks of `batchbridge run`: in each process of the command every `GRPOTrainer` is wrapped before it trains, and a
copy of it is refused there instead of training natively.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from types import ModuleType

from batchbridge.kit import follow_before
from batchbridge_trl.forks import fork_of


def trainer(module: ModuleType) -> None:
    """The hook into trl.trainer.grpo_trainer: a `GRPOTrainer` follows the launch before transformers' `train`."""
    follow_before(module.GRPOTrainer, "train")


def forks(module: ModuleType) -> None:
    """The hook into transformers.trainer: a copy or a fork of `GRPOTrainer` follows too; `wrap` refuses it by name."""
    follow_before(module.Trainer, "train", only=lambda trainer: fork_of(trainer) is not None)
