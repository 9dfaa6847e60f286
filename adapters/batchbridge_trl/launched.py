"""The hook of `batchbridge run`: in each process of the command every `GRPOTrainer` is wrapped before it trains."""

from __future__ import annotations

from types import ModuleType

from batchbridge.kit import follow_before


def trainer(module: ModuleType) -> None:
    """After trl.trainer.grpo_trainer: transformers' `train` follows the launch where the trainer is a `GRPOTrainer`."""
    follow_before(module.GRPOTrainer, "train")
