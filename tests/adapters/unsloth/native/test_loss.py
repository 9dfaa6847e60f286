"""Unsloth's own loss on a CPU: what a token weighs in it, and what comes back to it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import trl

GENERATED: Any = sys.modules[trl.GRPOTrainer.__module__]
"""The module that Unsloth wrote."""
LENGTHS = (12, 3, 6, 1)
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, 2.0])
WIDEST, LONGEST = 12, 16
MASK = torch.stack([(torch.arange(WIDEST) < length).float() for length in LENGTHS])
MICRO_BATCHES = ((0, 1), (2, 3))


def gradient(rows: tuple[int, ...], loss_type: str, factor: float = 1.0, upstream: float | None = None) -> torch.Tensor:
    """The gradient of a micro-batch's log-probabilities, of its loss times a factor; ratios are one."""
    picked = list(rows)
    logps = torch.full((len(rows), WIDEST), -1.0, requires_grad=True)
    settings = {
        "loss_type": loss_type,
        "max_completion_length": LONGEST,
        "num_items_in_batch": torch.tensor(float(sum(LENGTHS))),
        "current_gradient_accumulation_steps": len(MICRO_BATCHES),
        "steps_per_generation": len(MICRO_BATCHES),
        "num_processes": 1,
        "use_vllm": False,
    }
    tokens = torch.zeros(len(rows), WIDEST, dtype=torch.long)
    around = (None, None, None, None, tokens, MASK[picked], ADVANTAGES[picked], 0.0, None, 1, settings, upstream)
    loss = GENERATED.UnslothEfficientGRPO.apply(logps, *around)[0]
    (loss * factor).backward()
    assert logps.grad is not None
    return logps.grad


def weight(row: int, loss_type: str) -> float:
    """The weight of each token of a row, of which the unwrapped loss should have these."""
    mine = next(rows for rows in MICRO_BATCHES if row in rows)
    return {
        "dapo": 1 / sum(LENGTHS),
        "bnpo": 1 / sum(LENGTHS[one] for one in mine) / len(MICRO_BATCHES),
        "grpo": 1 / LENGTHS[row] / len(mine) / len(MICRO_BATCHES),
        "dr_grpo": 1 / len(mine) / LONGEST / len(MICRO_BATCHES),
    }[loss_type]


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo", "dr_grpo"])
def test_a_token_weighs_what_it_does_in_trl(loss_type: str) -> None:
    for rows in MICRO_BATCHES:
        found = -gradient(rows, loss_type) / ADVANTAGES[list(rows), None]
        expected = torch.tensor([[weight(row, loss_type)] for row in rows]) * MASK[list(rows)]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "grpo", "dr_grpo"])
def test_a_factor_on_the_loss_reaches_no_gradient(loss_type: str) -> None:
    """A factor does with `upstream_scale`, which Unsloth hands in under DeepSpeed alone; a wrapped run hands it in."""
    plain = gradient((0, 1), loss_type)
    torch.testing.assert_close(gradient((0, 1), loss_type, 7.0), plain, rtol=0, atol=0)
    torch.testing.assert_close(gradient((0, 1), loss_type, 7.0, upstream=1.0), 7 * plain)
