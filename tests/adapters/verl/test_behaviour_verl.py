"""What verl is said to do, without verl: scopes by version, exact weights, and what stays open."""

from __future__ import annotations

from fractions import Fraction

import pytest

import batchbridge
from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge_verl.config import VerlAdapter

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RUN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 4,
    "data.shuffle": False,
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 2,
    f"{ROLLOUT}tensor_model_parallel_size": 1,
    f"{ACTOR}ppo_mini_batch_size": 2,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 1,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 1,
    "trainer.n_gpus_per_node": 2,
    "trainer.total_epochs": 1,
    "trainer.balance_batch": False,
}
DEPRECATED = {"trainer.use_v1": False}


def reading(values, version="0.9.1"):
    return VerlAdapter().read(load_source({**RUN, **values}), Context(framework_version=version))


def steps(values, prompts=4, version="0.9.1"):
    tokens = {(p, s): 1 + p + s for p in range(prompts) for s in range(2)}
    return list(VerlAdapter().native_steps(reading(values, version), prompts, tokens)), tokens


@pytest.mark.parametrize(
    ("values", "version", "scope"),
    [
        ({}, "0.9.1", "optimizer_step"),
        ({}, "0.8.0", "optimizer_step"),
        ({}, "0.7.1", "micro_batch"),
        ({"trainer.use_legacy_worker_impl": "disable"}, "0.7.1", "optimizer_step"),
        ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum"}, "0.6.1", "optimizer_step"),
        ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, "0.9.1", "micro_batch"),
        (
            {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": 16},
            "0.9.1",
            "optimizer_step",
        ),
        ({f"{ACTOR}policy_loss.loss_mode": "geo_mean"}, "0.9.1", "micro_batch"),
    ],
)
def test_the_denominator_scope_of_a_version(values, version, scope):
    assert reading(values, version).behaviour.denominator_scope == scope


def test_a_step_takes_its_slice_of_every_replicas_block():
    # Two replicas: without balancing the first step is not prompts 0 and 1 (recorded: {0, 1, 4, 5} of 8 rows).
    found, _ = steps(DEPRECATED)
    assert {(row.prompt, row.sample) for row in found[0].rows} == {(0, 0), (0, 1), (2, 0), (2, 1)}


def test_token_mean_weights_of_a_step_sum_to_one():
    found, tokens = steps(DEPRECATED)
    for step in found:
        assert sum(row.weight * tokens[row.prompt, row.sample] for row in step.rows) == 1


def test_legacy_token_mean_divides_by_each_micro_batch():
    found, tokens = steps({}, version="0.7.1")
    for step in found:
        assert {row.weight for row in step.rows} == {
            Fraction(1, 2 * 2 * tokens[row.prompt, row.sample]) for row in step.rows
        }


def test_the_order_with_workers_is_every_second_permutation():
    # Recorded with torchdata: epoch e is permutation e without workers, 2e + 1 with them.
    values = {**DEPRECATED, "data.shuffle": True, "data.seed": 42, f"{ACTOR}ppo_mini_batch_size": 4}
    orders = {}
    for workers in (0, 2):
        found, _ = steps({**values, "trainer.total_epochs": 4, "data.dataloader_num_workers": workers})
        orders[workers] = [[row.prompt for row in step.rows] for step in found]
    assert orders[2][0] == orders[0][1]
    assert orders[2][1] == orders[0][3]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "arrival"),
        ({**DEPRECATED, "trainer.balance_batch": True}, "balance_batch"),
        ({**DEPRECATED, f"{ACTOR}shuffle": True}, "shuffle"),
        ({**DEPRECATED, f"{ACTOR}use_dynamic_bsz": True}, "use_dynamic_bsz"),
    ],
)
def test_what_the_settings_leave_open_is_refused_by_name(values, why):
    with pytest.raises(ValueError, match=why):
        steps(values)


def test_the_clock_ticks_once_per_rollout():
    assert "after every rollout" in reading({}).behaviour.lr_tick


def test_arrival_decides_nothing_where_a_rollout_is_one_step():
    assert reading({}).behaviour.undecided
    assert not reading({f"{ACTOR}ppo_mini_batch_size": 4}).behaviour.undecided


def test_total_training_steps_end_the_run():
    assert len(steps({**DEPRECATED, "trainer.total_training_steps": 1, "trainer.total_epochs": 3})[0]) == 2


@pytest.mark.parametrize(("version", "own"), [("0.7.1", True), ("0.9.1", False)])
def test_the_meaning_says_first_what_an_unwrapped_run_counts_otherwise(version, own):
    text = str(batchbridge.explain(RUN, version=version)).partition("Specification")[0]
    said = (
        f"Policy loss: token_mean, which verl {version} on its own counts per micro-batch (1 / (D k T_m)): the gradient"
    )
    followed = "a response token weighs 1 / T (T: response tokens), counted per optimizer step."
    assert (said in text) == own
    assert (f"\n    Under run or wrap: {followed}" in text) == own
    assert (f"Policy loss: token_mean, {followed}" in text) != own


def test_devices_that_no_replica_fits_leave_their_number_out_of_the_words():
    membership = reading({f"{ACTOR}ulysses_sequence_parallel_size": 3}).behaviour.membership
    assert "None" not in membership
    assert membership.endswith(
        "each replica takes a contiguous block of the rollout, and step j takes its j-th "
        "equal share of rows from every block"
    )
