"""The hooks of `batchbridge run`: in each process of the command every `GRPOTrainer` is wrapped before it trains, and a
copy of it is refused there instead of training natively."""

from __future__ import annotations

from types import ModuleType

from batchbridge.kit import follow_before
from batchbridge_trl.forks import fork_of


def trainer(module: ModuleType) -> None:
    """After trl.trainer.grpo_trainer: transformers' `train` follows the launch where the trainer is a `GRPOTrainer`."""
    follow_before(module.GRPOTrainer, "train")


def forks(module: ModuleType) -> None:
    """After transformers.trainer: a copy or a fork of `GRPOTrainer` follows too, and `wrap` refuses it by name."""
    follow_before(module.Trainer, "train", only=lambda trainer: fork_of(trainer) is not None)
