"""Differences in meaning: what counts, what does not, what cannot be told, and in which order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from registered import adapters
from specs import specs
from toys import AnyAdapter, NarrowAdapter, plain_spec, reading_of

import batchbridge
from batchbridge.comparing.comparison import Comparison
from batchbridge.comparing.diff_sources import diff
from batchbridge.comparing.differences import UNIT_OF
from batchbridge.comparing.effects import BY_FIELD, EFFECTS
from batchbridge.contract.reading import Context, Source
from batchbridge.meaning.spec import LossTerm, Spec

WHOLE = {"optimizer_step.completions_per_step": 128}
"""One optimizer step for each rollout."""


def compare(a: Spec, b: Spec, dataset_size: int | None = None) -> Comparison:
    return diff(reading_of(a, dataset_size=dataset_size), reading_of(b, dataset_size=dataset_size))


def fields(found: tuple[Any, ...]) -> list[str]:
    return [difference.field for difference in found]


def test_every_leaf_of_the_schema_has_one_row_in_the_table() -> None:
    assert sorted(effect.field for effect in EFFECTS) == sorted(UNIT_OF)


def test_every_row_has_a_reason() -> None:
    assert all(effect.reason for effect in EFFECTS)


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_a_run_is_equivalent_to_itself(spec: Spec) -> None:
    found = compare(spec, spec)
    assert (found.differences, found.cannot_tell, found.no_difference, found.derived) == ((), (), (), ())


@settings(max_examples=100, deadline=None)
@given(a=specs(), b=specs())
def test_the_comparison_is_symmetric(a: Spec, b: Spec) -> None:
    there, back = compare(a, b), compare(b, a)
    assert fields(there.differences) == fields(back.differences)
    assert fields(there.cannot_tell) == fields(back.cannot_tell)
    assert there.verdict == back.verdict


def test_plan_comes_before_weights_before_clock_before_objective_before_carried_before_order() -> None:
    changes = {
        "order.seed": 2,
        "carried.learning_rate": 1e-5,
        "objective.surrogate": "gspo",
        "horizon.epochs": 2.0,
        "loss.policy.aggregation": "sequence_mean",
        "rollout.completions_per_prompt": 4,
    }
    found = compare(plain_spec(), plain_spec(**changes))
    assert fields(found.differences) == list(reversed(changes))


def test_devices_and_micro_batches_are_no_difference_in_meaning() -> None:
    found = compare(plain_spec(), plain_spec(world_size=8, **{"micro_batch.completions_per_device": 2}))
    assert found.verdict == "equivalent"
    assert fields(found.no_difference) == ["topology.world_size", "micro_batch.completions_per_device"]


def test_a_native_denominator_per_micro_batch_makes_the_split_matter() -> None:
    split = plain_spec(**{"micro_batch.completions_per_device": 2})
    found = diff(reading_of(plain_spec(), NarrowAdapter()), reading_of(split, NarrowAdapter()))
    assert fields(found.differences) == ["micro_batch.completions_per_device"]


def test_native_runs_may_differ_though_the_specifications_agree() -> None:
    found = diff(reading_of(plain_spec(), AnyAdapter()), reading_of(plain_spec(), NarrowAdapter()))
    assert fields(found.differences) == ["native.denominator_scope", "native.defect.BB-NARROW-900"]
    assert "though the specifications agree" in found.differences[0].reason


def test_an_unknown_value_against_a_known_one_cannot_be_told() -> None:
    found = compare(plain_spec(), plain_spec(**{"carried.learning_rate": None}))
    assert fields(found.cannot_tell) == ["carried.learning_rate"]
    assert found.verdict == "undecided"


def test_off_against_a_value_is_a_difference() -> None:
    found = compare(plain_spec(), plain_spec(**{"objective.dual_clip": 3.0}))
    assert fields(found.differences) == ["objective.dual_clip"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"carried.max_gradient_norm": None}, {"carried.max_gradient_norm": 0.0}),
        ({"carried.top_k": -1}, {"carried.top_k": 0}),
        ({"carried.warmup_ratio": 0.0}, {"carried.warmup_steps": 0.0}),
        ({"order.prompt_shuffle": "none"}, {"order.prompt_shuffle": "none", "order.seed": 5}),
        ({"objective.kl_estimator": "k1"}, {"objective.kl_estimator": "k3"}),
        ({"advantage.scale": "none", "advantage.ddof": 0}, {"advantage.scale": "none", "advantage.ddof": 1}),
    ],
)
def test_what_has_no_effect_is_no_difference(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert compare(plain_spec(**a), plain_spec(**b)).verdict == "equivalent"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("optimizer_step.rollout_shuffle", "completions", "an optimizer step takes whole rollouts"),
        ("optimizer_step.step_may_span", "epoch", "sizes divide"),
        ("horizon.lr_tick", "rollout", "one optimizer step"),
    ],
)
def test_with_one_step_per_rollout_these_mean_the_same(field: str, value: str, reason: str) -> None:
    found = compare(plain_spec(**WHOLE), plain_spec(**WHOLE, **{field: value}))
    assert fields(found.no_difference) == [field]
    assert reason in found.no_difference[0].reason


@pytest.mark.parametrize(
    ("field", "value"), [("optimizer_step.rollout_shuffle", "completions"), ("horizon.lr_tick", "rollout")]
)
def test_with_two_steps_per_rollout_they_do_not(field: str, value: str) -> None:
    assert fields(compare(plain_spec(), plain_spec(**{field: value})).differences) == [field]


def test_what_happens_to_a_remainder_matters_only_where_there_is_one() -> None:
    a, b = plain_spec(), plain_spec(**{"order.last_rollout": "short"})
    assert compare(a, b, dataset_size=160).verdict == "equivalent"
    assert fields(compare(a, b, dataset_size=161).differences) == ["order.last_rollout"]


def test_lengths_in_different_units_are_compared_as_optimizer_steps() -> None:
    rollouts = plain_spec(**{"horizon.epochs": None, "horizon.rollouts": 10})
    steps = plain_spec(**{"horizon.epochs": None, "horizon.optimizer_steps": 20})
    assert compare(rollouts, steps).verdict == "equivalent"
    assert compare(plain_spec(), steps).verdict == "undecided"
    assert compare(plain_spec(), steps, dataset_size=160).verdict == "equivalent"
    assert fields(compare(plain_spec(), steps, dataset_size=320).differences) == ["horizon"]


def test_a_kl_term_of_its_own_is_compared_where_there_is_kl_in_the_loss() -> None:
    kl = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}
    own = {"loss.kl": LossTerm(aggregation="sequence_mean")}
    assert fields(compare(plain_spec(**kl), plain_spec(**kl, **own)).differences) == ["loss.kl.aggregation"]
    assert compare(plain_spec(), plain_spec(**own)).verdict == "equivalent"


def test_kl_on_one_side_only_is_one_difference_in_place_and_one_in_size() -> None:
    kl = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}
    found = compare(plain_spec(), plain_spec(**kl))
    assert fields(found.differences) == ["objective.kl_placement", "objective.kl_coefficient"]


@pytest.mark.parametrize(("portion", "verdict"), [(8, "equivalent"), (6, "not equivalent"), (32, "not equivalent")])
def test_generation_batches_count_where_they_leave_something_of_a_rollout(portion: int, verdict: str) -> None:
    found = compare(plain_spec(), plain_spec(**{"rollout.prompts_per_generation_batch": portion}))
    assert (found.verdict, len(found.differences)) == (verdict, int(verdict != "equivalent"))


def test_numbers_that_follow_are_shown_with_a_dataset() -> None:
    found = compare(plain_spec(), plain_spec(**WHOLE), dataset_size=160)
    assert ("optimizer_steps_per_rollout", "optimizer steps", 2, 1) in found.derived
    assert ("total_optimizer_steps", "optimizer steps", 20, 10) in found.derived


@pytest.mark.parametrize(
    ("step", "verdict"), [(64, "not equivalent"), (66, "invalid")], ids=["both are valid", "one is invalid"]
)
def test_an_invalid_side_makes_the_comparison_invalid(step: int, verdict: str) -> None:
    other = reading_of(plain_spec(**{"optimizer_step.completions_per_step": step}), NarrowAdapter())
    assert diff(reading_of(plain_spec(), AnyAdapter()), other).verdict == verdict


def test_a_side_without_a_specification_is_undecided() -> None:
    nothing = dataclasses.replace(reading_of(plain_spec()), spec=None)
    assert diff(reading_of(plain_spec()), nothing).verdict == "undecided"


def test_it_is_a_public_function(frameworks: None) -> None:
    a, b = (batchbridge.read({"num_generations": n}, framework="trl", version="1.16.0", world_size=8) for n in (8, 4))
    assert BY_FIELD["rollout.completions_per_prompt"].field in fields(batchbridge.diff(a, b).differences)


def test_of_several_lengths_the_first_to_end_is_compared() -> None:
    several = plain_spec(**{"horizon.epochs": 3.0, "horizon.optimizer_steps": 20})
    steps = plain_spec(**{"horizon.epochs": None, "horizon.optimizer_steps": 20})
    assert compare(several, several).verdict == "equivalent"
    assert compare(several, steps, dataset_size=160).verdict == "equivalent"
    assert compare(several, plain_spec(), dataset_size=160).verdict == "equivalent"
    (found,) = compare(several, plain_spec(), dataset_size=80).differences
    assert (found.field, found.a, found.b) == ("horizon", "3 epochs or 20 optimizer steps", "1 epochs")
    (unknown,) = compare(several, steps).cannot_tell
    assert "several, the first to end counting" in unknown.reason


def test_a_term_without_a_word_is_a_difference_by_its_name() -> None:
    gdpo = plain_spec(open_terms=("advantage: gdpo",))
    assert compare(gdpo, gdpo).verdict == "equivalent"
    (found,) = compare(plain_spec(), gdpo).differences
    assert (found.field, found.a, found.b) == ("open_terms", (), ("advantage: gdpo",))
    other = plain_spec(open_terms=("objective: vapo_nll",))
    assert fields(compare(gdpo, other).differences) == ["open_terms"]


@pytest.mark.parametrize(
    ("estimator", "ratio", "bound", "same"),
    [
        ("k3", 20.0, 10.0, True),
        ("k3+", 20.0, 10.0, True),
        ("k3", 10.0, 10.0, False),
        ("k3", 20.0, None, False),
        ("k1", 10.0, 10.0, True),
        ("k2", 10.0, 50.0, True),
        ("k2", 10.0, 51.0, False),
        ("k1_with_score", 20.0, 10.0, False),
    ],
)
def test_a_bound_of_the_log_ratio_acts_where_that_of_the_estimate_does_not(
    estimator: str, ratio: float, bound: float | None, same: bool
) -> None:
    kl = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.1, "objective.kl_estimator": estimator}
    kl["objective.kl_clamp"] = bound
    found = compare(plain_spec(**kl), plain_spec(**kl, **{"objective.kl_log_ratio_clamp": ratio}))
    assert (found.verdict == "equivalent") is same
    assert fields(found.no_difference if same else found.differences) == ["objective.kl_log_ratio_clamp"]


def test_a_setting_that_has_another_name_in_later_versions_differs_once() -> None:
    options = {"rollout_batch_size": 32, "train_batch_size": 32, "remote_rm_url": "http://x"}
    adapter = adapters()["openrlhf"]
    a, b = (
        adapter.read(Source(values={**options, "pretrain": model}), Context(framework_version="0.9.0"))
        for model in ("a/b", "c/d")
    )
    (found,) = diff(a, b).differences
    assert (found.field, found.a, found.b) == ("outside.actor.model_name_or_path", "a/b", "c/d")
