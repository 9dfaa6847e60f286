"""What TRL is said to do, without TRL: scopes by version, exact weights on several devices, and what stays open."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from batchbridge.contract.reading import Context
from batchbridge.kit.torch_random import LARGEST, TorchGenerator
from batchbridge.reading.files import load_source
from batchbridge_trl.behaviour import DENOMINATORS, native_rollouts
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.settings import holds

RUN = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "num_train_epochs": 2,
    "loss_type": "dapo",
}


def reading(values, *, world=2, version="1.16.0"):
    return TrlAdapter().read(load_source(values), Context(framework_version=version, world_size=world))


def steps(values, prompts, *, world=2, length=lambda prompt, sample: 1 + prompt + sample):
    tokens = {(p, s): length(p, s) for p in range(prompts) for s in range(4)}
    return list(TrlAdapter().native_steps(reading(values, world=world), prompts, tokens)), tokens


@pytest.mark.parametrize(
    ("loss", "rollout", "scope"),
    [
        ("grpo", 2, "optimizer_step"),
        ("bnpo", 2, "micro_batch"),
        ("dapo", 2, "optimizer_step"),
        ("dapo", 4, "rollout"),
        ("cispo", 4, "rollout"),
        ("dr_grpo", 4, "optimizer_step"),
    ],
)
def test_the_denominator_scope_of_a_loss_type(loss, rollout, scope):
    values = {**RUN, "loss_type": loss, "steps_per_generation": rollout}
    assert reading(values).behaviour.denominator_scope == scope


def test_each_device_takes_a_contiguous_half_of_the_rollout():
    # Recorded with two processes, G = 4 and 4 prompts per rollout: rank 0 prompts 0 and 1, rank 1 prompts 2 and 3.
    values = {**RUN, "gradient_accumulation_steps": 4, "shuffle_dataset": False, "num_train_epochs": 1}
    (step,), _ = steps(values, 4)
    assert {rank: {row.prompt for row in step.rows if row.rank == rank} for rank in (0, 1)} == {0: {0, 1}, 1: {2, 3}}


def test_the_prompt_order_of_seed_42_over_two_epochs_is_the_recorded_one():
    # Recorded from trl 1.16.0: 7 prompts, 2 per rollout.
    found, _ = steps({**RUN, "seed": 42}, 7)
    rollouts = {}
    for step in found:
        for row in step.rows:
            rollouts.setdefault(row.rollout, set()).add(row.prompt)
    assert list(rollouts.values()) == [{1, 6}, {3, 5}, {4, 0}, {5, 3}, {2, 4}, {0, 1}]


def test_weights_of_an_aligned_dapo_step_sum_to_one():
    found, tokens = steps(RUN, 8)
    for step in found:
        assert sum(row.weight * tokens[row.prompt, row.sample] for row in step.rows) == 1


def test_weights_of_a_step_over_two_rollouts_are_each_rollouts_own():
    values = {**RUN, "gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_train_epochs": 1}
    found, tokens = steps(values, 4)
    for rollout in (0, 1):
        rows = [row for row in found[0].rows if row.rollout == rollout]
        total = sum(tokens[row.prompt, row.sample] for row in rows)
        assert {row.weight for row in rows} == {Fraction(2, 4 * total)}


def test_an_empty_completion_weighs_nothing():
    found, _ = steps({**RUN, "loss_type": "grpo"}, 4, length=lambda prompt, sample: sample)
    assert {row.weight for step in found for row in step.rows if row.sample == 0} == {0}


def test_weights_that_padding_decides_are_open():
    run = reading({**RUN, "loss_type": "luspo"}, version="1.9.2")
    tokens = {(p, s): 3 for p in range(4) for s in range(4)}
    assert {row.weight for step in TrlAdapter().native_steps(run, 4, tokens) for row in step.rows} == {None}


def test_sampled_rollouts_leave_the_step_of_a_completion_open_only_where_a_rollout_is_cut_into_steps():
    said = [reading({**RUN, "steps_per_generation": steps}).behaviour.undecided[0] for steps in (2, 4)]
    assert ["optimizer step" in text for text in said] == [False, True]


def test_split_batches_on_several_devices_is_refused_by_name():
    values = {**RUN, "accelerator_config": {"split_batches": True}}
    with pytest.raises(ValueError, match="split_batches"):
        steps(values, 4)


def test_a_dataset_smaller_than_a_rollout_gives_no_step():
    assert steps(RUN, 1)[0] == []


def test_a_permutation_longer_than_pytorchs_32_bit_ones_is_refused():
    with pytest.raises(ValueError, match="PyTorch shuffles otherwise"):
        TorchGenerator(0).permutation(LARGEST + 1)


def test_max_steps_ends_the_run():
    assert len(steps({**RUN, "max_steps": 3}, 8)[0]) == 3


def test_the_page_lists_which_stock_runs_pass_in_mode_verify():
    """Every loss type of a release that is wrapped, with what its tokens are divided by; the real runs are
    `native/test_verified_stock_runs.py`."""
    page = (Path(__file__).parents[3] / "docs" / "measured.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \| (\w+) \| (?:ends|stops)", page, re.MULTILINE)
    listed = {loss.strip("`"): scope for names, scope in rows for loss in names.split(", ")}
    wrapped = [row for row in DENOMINATORS if any(holds(row.versions, release) for release in ("0.18.0", "1.16.0"))]
    assert listed == {loss: row.scope for row in wrapped for loss in row.losses}


def test_the_own_order_of_rollouts_is_that_of_the_predicted_steps():
    values = {**RUN, "num_iterations": 2, "shuffle_dataset": True}
    predicted, _ = steps(values, 9)
    own = native_rollouts(reading(values), 9)
    for rollout in range(2 * (9 // 2)):
        trained = {row.prompt for step in predicted for row in step.rows if row.rollout == rollout}
        assert trained == set(next(own))


@pytest.mark.parametrize("changes", [{"dataset_streaming": True}, {"accelerator_config": {"dispatch_batches": True}}])
def test_an_order_that_is_left_open_is_not_said(changes):
    with pytest.raises(ValueError, match=r"dataset_streaming|dispatch_batches"):
        native_rollouts(reading({**RUN, **changes}), 9)
