"""A refusal that settings decide says the same of a recipe, as `check` reads it, and of the `GRPOTrainer` that TRL
builds of it, as `wrap` does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from batchbridge import Reading, read
from batchbridge.kit import Request
from batchbridge.meaning.candidates import plan_of
from batchbridge_trl import runtime
from batchbridge_trl.releases import has, lacks

SIZES = {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 3, "bf16": False, "use_cpu": True}
DRAWN: Mapping[str, tuple[Any, ...]] = {
    "beta": (0.0, 0.1),
    "loss_type": ("grpo", "dr_grpo"),
    "optim": ("adamw_torch", "lomo", "adafactor"),
    "gradient_accumulation_steps": (1, 2),
    "num_iterations": (1, 2),
    **({} if lacks("importance_sampling_level") else {"importance_sampling_level": ("token", "sequence")}),
    **({} if lacks("top_entropy_quantile") else {"top_entropy_quantile": (1.0, 0.5)}),
    **({} if not has(">=0.26") else {"scale_rewards": ("group", "none", "batch")}),
    **({} if lacks("_entropy_bonus_enabled") else {"entropy_coef": (0.0, 0.1)}),
    **({} if lacks("multi_objective_aggregation") else {"multi_objective_aggregation": (
        "sum_then_normalize", "normalize_then_sum",
    )}),
}  # fmt: skip


def request_of(reading: Reading) -> Request:
    assert reading.spec is not None, reading.findings
    return Request(spec=reading.spec, plan=plan_of(reading.spec, 6), reading=reading, mode="enforce")


@pytest.mark.parametrize("seed", range(12))
def test_a_refusal_of_settings_says_the_same_of_a_recipe_and_of_its_trainer(
    seed: int, trainer: Callable[..., Any]
) -> None:
    draw = random.Random(seed)
    settings = {key: draw.choice(values) for key, values in DRAWN.items() if draw.random() < 0.6}
    built = trainer(**{**SIZES, **settings})
    told = request_of(read({**SIZES, **settings}, framework="trl", world_size=1, dataset_size=6))
    own = request_of(read(built, framework="trl"))
    rows = [row for row in runtime.RUNTIME.refusals if row.live is None]
    assert {row.name: row.foreseen(told) for row in rows} == {row.name: row.foreseen(own) for row in rows}, settings
