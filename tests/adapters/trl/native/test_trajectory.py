"""L3: where ten optimizer steps lead, between all splits of the same step, in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from batchbridge import wrap
from batchbridge_trl.releases import has_loss
from batchbridge_trl.testing import flat_parameters

SPLITS = {"8x1": (8, 1), "4x2": (4, 2), "2x4": (2, 4), "1x8": (1, 8)}
BAR = 1e-5
LEARNING_RATES = {
    # SGD's steps scale with the aggregation: a sum over tokens is long, a constant of 24 tokens short.
    "sgd": {"bnpo": 0.05, "grpo": 0.05, "dr_grpo": 0.15, "luspo": 0.005},
    "adamw_torch": {"bnpo": 3e-3, "grpo": 3e-3, "dr_grpo": 3e-3, "luspo": 3e-3},
}


def displacement(built: Any) -> torch.Tensor:
    """Parameters at the end minus at the start, at least one percent of the parameters' norm."""
    start = flat_parameters(built.model)
    built.train()
    moved = flat_parameters(built.model) - start
    assert moved.norm() >= 0.01 * start.norm()
    return moved


def arguments(split: str, optimizer: str, loss_type: str) -> dict[str, Any]:
    micro, accumulation = SPLITS[split]
    # rollouts of 4 prompts, two steps each, and a dataset that 4 does not divide
    return {
        "loss_type": loss_type,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "generation_batch_size": 16,
        "prompts": 9,
        "max_steps": 10,
        "optim": optimizer,
        "learning_rate": LEARNING_RATES[optimizer][loss_type],
        "beta": 0.04,
    }


@pytest.mark.parametrize("optimizer", LEARNING_RATES)
@pytest.mark.parametrize("loss_type", filter(has_loss, LEARNING_RATES["sgd"]))
def test_all_splits_lead_to_the_same_parameters(trainer: Callable[..., Any], loss_type: str, optimizer: str) -> None:
    ends = {split: displacement(wrap(trainer(split, **arguments(split, optimizer, loss_type)))) for split in SPLITS}
    for split, moved in ends.items():
        assert (moved - ends["8x1"]).norm() / ends["8x1"].norm() <= BAR, split


def test_negative_control_unwrapped_splits_of_bnpo_part_by_far(trainer: Callable[..., Any]) -> None:
    whole, split = (
        displacement(trainer(name, shuffle_dataset=False, **arguments(name, "sgd", "bnpo"))) for name in ("8x1", "2x4")
    )
    assert (split - whole).norm() / whole.norm() > 10 * BAR
