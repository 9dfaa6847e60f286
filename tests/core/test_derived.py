"""The derived numbers beside a spec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.meaning.derived import UNITS, derive
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, MicroBatch, OptimizerStep, Order, Rollout, Spec, Topology

# micro-batch 4 x accumulation 2 x 3 devices, 6 completions per prompt, 2 epochs.
KNOWN = Spec(
    topology=Topology(world_size=3),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=6),
    optimizer_step=OptimizerStep(completions_per_step=24, step_may_span="epoch"),
    micro_batch=MicroBatch(completions_per_device=4),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2),
    order=Order(seed=42),
)


def test_every_number_of_a_known_run() -> None:
    assert derive(KNOWN, 8003) == {
        "completions_per_rollout": 24,
        "completions_per_step": 24,
        "completions_per_device_per_step": 8,
        "prompts_per_step": 4,
        "optimizer_steps_per_rollout": 1,
        "gradient_accumulation_steps": 2,
        "policy_lag_steps": 0,
        "rollouts_per_epoch": 2000,
        "optimizer_steps_per_epoch": 2000,
        "total_rollouts": 4000,
        "total_optimizer_steps": 4000,
        "prompts_dropped_per_epoch": 3,
    }


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"optimizer_step.completions_per_step": 9}, "prompts_per_step", 1.5),
        ({"optimizer_step.completions_per_step": 48}, "optimizer_steps_per_rollout", 0.5),
        ({"optimizer_step.completions_per_step": 48}, "policy_lag_steps", 0),
        ({"optimizer_step.completions_per_step": 6}, "policy_lag_steps", 3),
        ({"optimizer_step.passes_per_rollout": 2}, "policy_lag_steps", 1),
        ({"topology.world_size": 6, "topology.tensor_parallel": 2}, "completions_per_device_per_step", 8),
        ({"topology.world_size": 7}, "completions_per_device_per_step", 24 / 7),
        ({"micro_batch.completions_per_device": 3}, "gradient_accumulation_steps", 8 / 3),
        ({"rollout.prompts_per_rollout": None}, "completions_per_rollout", None),
        ({"optimizer_step.completions_per_step": None}, "completions_per_step", None),
        ({"order.last_rollout": "short"}, "prompts_dropped_per_epoch", 0),
        ({"order.last_rollout": "wrap", "optimizer_step.step_may_span": "run"}, "rollouts_per_epoch", None),
        ({"horizon": Horizon(rollouts=7)}, "total_rollouts", 7),
    ],
)
def test_a_change_of_the_spec_changes_the_number(changes: dict[str, Any], name: str, value: float | None) -> None:
    assert derive(KNOWN.replace(**changes), 8003)[name] == value


def test_without_a_dataset_size_what_depends_on_it_is_open() -> None:
    open_names = {name for name, value in derive(KNOWN).items() if value is None}
    assert open_names == {
        "rollouts_per_epoch",
        "optimizer_steps_per_epoch",
        "total_rollouts",
        "total_optimizer_steps",
        "prompts_dropped_per_epoch",
    }


@pytest.mark.parametrize(
    ("horizon", "name", "value"),
    [(Horizon(optimizer_steps=5), "total_optimizer_steps", 5), (Horizon(rollouts=6), "total_rollouts", 6)],
)
def test_a_horizon_in_its_own_unit_needs_no_dataset_size(horizon: Horizon, name: str, value: int) -> None:
    assert derive(KNOWN.replace(horizon=horizon))[name] == value


def test_counts_do_not_wait_for_a_seed() -> None:
    assert derive(KNOWN.replace(**{"order.seed": None}), 8003) == derive(KNOWN, 8003)


def test_totals_are_open_where_generation_batches_leave_something_of_a_rollout() -> None:
    portions = KNOWN.replace(**{"rollout.prompts_per_generation_batch": 3})
    assert derive(portions, 8003)["total_rollouts"] is None
    assert derive(portions, 8003)["completions_per_rollout"] == 24


def test_every_derived_number_has_a_unit() -> None:
    assert list(derive(KNOWN, 8000)) == list(UNITS)
    assert all(UNITS.values())


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 60), st.integers(1, 100))
def test_the_numbers_agree_with_the_plan(prompts: int, samples: int, step: int, dataset_size: int) -> None:
    spec = KNOWN.replace(
        **{
            "rollout.prompts_per_rollout": prompts,
            "rollout.completions_per_prompt": samples,
            "optimizer_step.completions_per_step": step,
        }
    )
    numbers, steps = derive(spec, dataset_size), list(Plan(spec, dataset_size).steps())
    assert numbers["total_optimizer_steps"] == len(steps)
    assert numbers["total_rollouts"] == len({member.rollout for each in steps for member in each.members})


@given(st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3))
def test_a_spec_that_rules_refuse_still_gives_numbers(
    world_size: int, tensor_parallel: int, prompts: int, step: int, passes: int
) -> None:
    spec = KNOWN.replace(
        **{
            "topology.world_size": world_size,
            "topology.tensor_parallel": tensor_parallel,
            "rollout.prompts_per_rollout": prompts,
            "optimizer_step.completions_per_step": step,
            "optimizer_step.passes_per_rollout": passes,
        }
    )
    assert set(derive(spec, 10)) == set(UNITS)
