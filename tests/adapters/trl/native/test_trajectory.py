"""L3: where ten optimizer steps lead, between all splits of the same step, in one process, and in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from representative import cells

from batchbridge import wrap
from batchbridge.testing.equivalence import ADAM_EPSILON
from batchbridge_on_cpu.trajectories import (
    FAULTS,
    Fault,
    adamw,
    assert_other_end,
    assert_same_end,
    reference_run,
    sgd,
)
from batchbridge_trl.testing import flat_parameters

SPLITS = {"8x1": (8, 1), "4x2": (4, 2), "2x4": (2, 4), "1x8": (1, 8)}
STEPS = 10
LEARNING_RATES = {
    # SGD's steps scale with the aggregation: a sum over tokens is long, a constant of 24 tokens short.
    "sgd": {"bnpo": 0.05, "grpo": 0.05, "dr_grpo": 0.15, "luspo": 0.005},
    "adamw_torch": {"bnpo": 3e-3, "grpo": 3e-3, "dr_grpo": 3e-3, "luspo": 3e-3},
}
RUNS = [cell[:2] for cell in cells(LEARNING_RATES["sgd"], LEARNING_RATES)]


def ends(built: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters at the start and at the end."""
    start = flat_parameters(built.model)
    built.train()
    return start, flat_parameters(built.model)


def arguments(split: str, optimizer: str, loss_type: str) -> dict[str, Any]:
    micro, accumulation = SPLITS[split]
    # rollouts of 4 prompts, two steps each, and a dataset that 4 does not divide
    return {
        "loss_type": loss_type,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "generation_batch_size": 16,
        "prompts": 9,
        "max_steps": STEPS,
        "optim": optimizer,
        "adam_epsilon": ADAM_EPSILON,
        "learning_rate": LEARNING_RATES[optimizer][loss_type],
        "beta": 0.04,
    }


@pytest.mark.parametrize(("loss_type", "optimizer"), RUNS)
def test_all_splits_lead_to_the_same_policy(trainer: Callable[..., Any], loss_type: str, optimizer: str) -> None:
    runs = {split: ends(wrap(trainer(split, **arguments(split, optimizer, loss_type)))) for split in SPLITS}
    start, whole = runs.pop("8x1")
    for split, (_, end) in runs.items():
        assert_same_end(f"trl, {optimizer}, {loss_type}: 8x1 and {split}", start, end, whole)


@pytest.mark.parametrize(("loss_type", "optimizer"), RUNS)
def test_a_run_ends_where_its_plan_leads_in_plain_torch_and_with_one_fault_elsewhere(
    trainer: Callable[..., Any], loss_type: str, optimizer: str
) -> None:
    built = wrap(trainer(**arguments("2x4", optimizer, loss_type)))
    _, end = ends(built)
    rate = LEARNING_RATES[optimizer][loss_type]
    made = sgd(rate) if optimizer == "sgd" else adamw(rate)

    def led(fault: Fault | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return reference_run(built.batchbridge.plan, made, fault=fault)

    case = f"trl, {optimizer}, {loss_type}: plain torch"
    start, sound = led()
    assert_same_end(case, start, end, sound)
    for fault in FAULTS:
        assert_other_end(f"{case}, {fault}", start, end, led(fault)[1])


def test_negative_control_unwrapped_splits_of_bnpo_part_by_far(trainer: Callable[..., Any]) -> None:
    (start, whole), (_, split) = (
        ends(trainer(name, shuffle_dataset=False, **arguments(name, "sgd", "bnpo"))) for name in ("8x1", "2x4")
    )
    assert_other_end("trl, unwrapped: 8x1 and 2x4", start, split, whole)
