"""The same run on other devices: kept where it can be, and otherwise the nearest choices, each legal."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import AnyAdapter, NarrowAdapter, plain_spec, reading_of

import batchbridge
from batchbridge.adapter import Context, Reading, Source
from batchbridge.between.effects import leaves
from batchbridge.between.scale import MAX_DEVICES, MAX_JUDGED, Scaling, scale, scale_with
from batchbridge_trl.config import TrlAdapter

KEPT = (
    "optimizer_step.completions_per_step",
    "rollout.completions_per_prompt",
    "rollout.prompts_per_rollout",
    "optimizer_step.passes_per_rollout",
)


def trl_reading(world_size: int = 8, **values: object) -> Reading:
    """64 completions per optimizer step of 8 prompts, unless `values` say otherwise."""
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 8, **values}
    reading = TrlAdapter().read(
        Source(values=given),
        Context(framework_version="1.16.0", world_size=world_size),
    )
    assert reading.spec is not None
    return reading


def sizes(found: Scaling) -> list[tuple[int, int | None, int]]:
    """(devices, completions per step, completions per prompt) of each choice."""
    return [
        (c.spec.topology.world_size, c.spec.optimizer_step.completions_per_step, c.spec.rollout.completions_per_prompt)
        for c in found.choices
    ]


@pytest.mark.parametrize("world_size", [1, 2, 4, 16, 32, 64])
def test_devices_that_divide_the_step_keep_everything(world_size: int) -> None:
    found = scale_with(TrlAdapter(), trl_reading(), world_size)
    (choice,) = found.choices
    assert found.verdict == "kept"
    assert choice.lost == ()
    assert choice.spec.topology.world_size == world_size
    before, after = trl_reading().spec, choice.spec
    assert before is not None
    assert {path: leaves(before)[path] for path in KEPT} == {path: leaves(after)[path] for path in KEPT}


def test_half_the_devices_take_twice_the_accumulation_and_the_same_micro_batch() -> None:
    (choice,) = scale_with(TrlAdapter(), trl_reading(), 4).choices
    assert choice.settings == {"gradient_accumulation_steps": (2, 4)}


def test_seven_of_eight_devices_offer_the_nearest_steps_groups_and_devices() -> None:
    found = scale_with(TrlAdapter(), trl_reading(), 7)
    assert found.verdict == "not kept"
    assert sizes(found) == [
        (7, 56, 8),
        (7, 112, 8),
        (7, 63, 7),
        (7, 63, 9),
        (7, 70, 7),
        (7, 70, 10),
        (4, 64, 8),
        (8, 64, 8),
    ]


def test_every_choice_names_what_it_cannot_keep() -> None:
    for choice in scale_with(TrlAdapter(), trl_reading(), 7).choices:
        fields = {difference.field for difference in choice.lost}
        step = choice.spec.optimizer_step.completions_per_step
        assert ("optimizer_step.completions_per_step" in fields) == (step != 64)
        assert ("rollout.completions_per_prompt" in fields) == (choice.spec.rollout.completions_per_prompt != 8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    world_size=st.integers(1, 4096),
    micro=st.sampled_from([1, 2, 3, 8]),
    accumulation=st.sampled_from([1, 2, 5]),
    steps=st.sampled_from([1, 2]),
)
def test_every_choice_is_legal_and_keeps_the_steps_per_rollout(
    world_size: int, micro: int, accumulation: int, steps: int
) -> None:
    reading = trl_reading(
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * steps,
    )
    found = scale_with(TrlAdapter(), reading, world_size)
    assert found.choices
    for choice in found.choices:
        assert choice.reading.verdict == "valid"
        assert choice.reading.derived["optimizer_steps_per_rollout"] == steps


@settings(max_examples=40, deadline=None)
@given(world_size=st.integers(1, MAX_DEVICES), step=st.integers(1, 10**9), prompts=st.integers(1, 10**9))
def test_no_size_makes_the_search_long(world_size: int, step: int, prompts: int) -> None:
    asked = 0

    class Counting(NarrowAdapter):
        def write(self, spec, framework_version=None):  # type: ignore[no-untyped-def]  # as in the base
            nonlocal asked
            asked += 1
            return super().write(spec)

    spec = plain_spec(**{"optimizer_step.completions_per_step": step, "rollout.prompts_per_rollout": prompts})
    scale_with(Counting(), reading_of(spec), world_size)
    assert asked <= MAX_JUDGED + 1


def test_the_frameworks_own_rules_are_the_judge() -> None:
    class OddOnly(AnyAdapter):
        def check(self, reading):  # type: ignore[no-untyped-def]  # as in the base
            finding = batchbridge.Finding("BB-ANY-002", "error", "config", "even", ())
            return [finding] if reading.spec.topology.world_size % 2 == 0 else []

    found = scale_with(OddOnly(), reading_of(plain_spec(world_size=1)), 6)
    assert found.choices
    assert all(choice.spec.topology.world_size % 2 for choice in found.choices)


def test_a_native_denominator_per_micro_batch_is_named_as_not_kept() -> None:
    (choice, *_) = scale_with(NarrowAdapter(), reading_of(plain_spec(), NarrowAdapter()), 8).choices
    assert [difference.field for difference in choice.lost] == ["topology.world_size"]


def test_devices_that_make_no_whole_replicas_offer_smaller_parallel_sizes_and_other_devices() -> None:
    spec = plain_spec(world_size=8, **{"topology.tensor_parallel": 4})
    found = scale_with(AnyAdapter(), reading_of(spec), 6)
    shapes = [(c.spec.topology.world_size, c.spec.topology.tensor_parallel) for c in found.choices]
    assert shapes == [(6, 3), (6, 6), (4, 4), (8, 4)]


def test_an_undecided_reading_is_undecided() -> None:
    reading = TrlAdapter().read(
        Source(values={"num_generations": 8}),
        Context(framework_version="1.16.0"),
    )
    assert scale_with(TrlAdapter(), reading, 8).verdict == "undecided"


@pytest.mark.parametrize("world_size", [0, -1, MAX_DEVICES + 1])
def test_an_absurd_world_size_is_refused(world_size: int, frameworks: None) -> None:
    with pytest.raises(ValueError, match="world_size"):
        scale(reading_of(plain_spec()), world_size)


def test_it_is_a_public_function(frameworks: None) -> None:
    assert batchbridge.scale(reading_of(plain_spec()), 8).verdict == "kept"
