"""The same run on other devices: kept where it can be, and otherwise the nearest choices, each legal."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registered import adapters
from toys import AnyAdapter, NarrowAdapter, plain_spec, reading_of

import batchbridge
from batchbridge.comparing.convert import convert_to
from batchbridge.comparing.effects import leaves
from batchbridge.comparing.legal_choices import MAX_JUDGED, Choice
from batchbridge.comparing.scale import MAX_DEVICES, MOST, RANKING, Scaling, scale, scale_with
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.errors import CannotWrite, Problem
from batchbridge.reading.read import read_source
from batchbridge.render.between import scaling
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


def test_seven_of_eight_devices_offer_the_nearest_step_a_group_and_fewer_devices() -> None:
    found = scale_with(TrlAdapter(), trl_reading(), 7)
    assert found.verdict == "not kept"
    assert sizes(found) == [(7, 56, 8), (7, 63, 7), (4, 64, 8)]


def recipe(**more: object) -> Reading:
    """512 completions of 32 prompts on 8 devices, 16 at once, as Open-R1's demo has them."""
    said = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 16, **more}
    return trl_reading(**said)


def test_no_choice_has_far_more_micro_batches_beside_saner_ones() -> None:
    found = scale_with(TrlAdapter(), recipe(), 6)
    shown = [(choice.spec.micro_batch.completions_per_device, choice.reading.derived) for choice in found.choices]
    assert [(micro, derived["gradient_accumulation_steps"]) for micro, derived in shown] == [(11, 8), (16, 5), (16, 8)]


def test_a_choice_sets_no_key_that_the_recipe_does_not_have_unless_it_must() -> None:
    found = scale_with(TrlAdapter(), recipe(), 6)
    assert [set(choice.settings) for choice in found.choices] == [
        {"per_device_train_batch_size", "gradient_accumulation_steps"},
        {"gradient_accumulation_steps"},
        {"gradient_accumulation_steps"},
    ]
    needed = scale_with(TrlAdapter(), recipe(generation_batch_size=1024), 6)
    assert all("generation_batch_size" in choice.settings for choice in needed.choices[:2])


FLAT = {
    "rollout_batch_size": 1024,
    "n_samples_per_prompt": 2,
    "train_batch_size": 32,
    "micro_train_batch_size": 2,
    "micro_rollout_batch_size": 8,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 2,
}
"""A run of OpenRLHF before 0.10.2, whose readings know each option by a later name."""


@pytest.mark.parametrize(
    ("framework", "version", "values", "present", "wanted"),
    [
        ("trl", "1.16.0", {"per_device_train_batch_size": 2, "steps_per_generation": 8}, 16, 9),
        ("trl", "1.16.0", {"gradient_accumulation_steps": 7, "steps_per_generation": 14}, 8, 4),
        ("trl", "1.16.0", {"generation_batch_size": 128, "max_steps": 10}, 8, 6),
        ("openrlhf", "0.9.0", FLAT, None, 1),
        ("openrlhf", "0.9.0", FLAT, None, 3),
        ("openrlhf", "0.8.5", {**FLAT, "zero_stage": 3, "seed": 1}, None, 6),
    ],
)
def test_the_settings_of_a_choice_are_all_that_it_takes(
    framework: str, version: str, values: dict[str, Any], present: int | None, wanted: int
) -> None:
    adapter = adapters()[framework]
    context = Context(framework_version=version, world_size=present)
    reading = adapter.read(Source(values=values), context)
    found = scale_with(adapter, reading, wanted)
    assert found.choices
    for choice in found.choices:
        assert {key: old for key, (old, _) in choice.settings.items()} == {
            key: reading.native.get(key) for key in choice.settings
        }
        changed = {**values, **{key: new for key, (_, new) in choice.settings.items()}}
        left = {key: value for key, value in changed.items() if value is not None}
        devices = present and choice.spec.topology.world_size
        again = adapter.read(Source(values=left), dataclasses.replace(context, world_size=devices))
        assert (again.verdict, again.spec) == ("valid", choice.spec), choice.settings


@pytest.mark.parametrize("world_size", [3, 5, 6, 7, 12, 33, 100])
def test_devices_that_nobody_has_are_never_offered(world_size: int) -> None:
    found = scale_with(TrlAdapter(), recipe(), world_size)
    assert 1 <= len(found.choices) <= MOST
    assert all(choice.spec.topology.world_size <= world_size for choice in found.choices)


def test_what_a_choice_keeps_is_ranked_by_the_table() -> None:
    reading = recipe()
    assert reading.spec is not None
    found = scale_with(TrlAdapter(), reading, 6)
    ranks = [[key(choice, reading.spec, 6) for _, key in RANKING] for choice in found.choices]
    assert ranks == sorted(ranks)


def test_devices_that_do_not_hold_one_replica_are_told_so() -> None:
    """As the published script of a model with 671 billion parameters has it, on 64 devices."""
    spec = plain_spec(world_size=96, **{"topology.tensor_parallel": 8, "topology.pipeline_parallel": 12})
    found = scale_with(AnyAdapter(), reading_of(spec), 64)
    assert (found.verdict, found.choices) == ("not kept", ())
    held = "tensor parallel 8 x pipeline parallel 12 = 96 devices, which one replica of the model takes"
    assert found.problems == (f"64 devices do not hold {held}",)
    assert f"\n  64 devices do not hold {held}" in scaling("run.sh", found)
    found = scale_with(AnyAdapter(), reading_of(spec), 100)
    assert [choice.spec.topology.world_size for choice in found.choices] == [96]
    assert f"\n  100 devices are not a multiple of {held}" in scaling("run.sh", found)


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


# ---- every framework, 1 to 4096 devices

POWERS = [1 << power for power in range(13)]
PRIMES = [3, 5, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093]
STEPS = {"one step per rollout": 128, "two steps per rollout": 64, "four steps per rollout": 32}


@cache
def native_reading(framework: str, steps: str) -> Reading:
    """What the framework reads of its own configuration of 16 prompts x 8 completions, in some optimizer steps."""
    clipped = {"objective.clip_low": 0.2, "objective.clip_high": 0.2}
    spec = plain_spec(**{"optimizer_step.completions_per_step": STEPS[steps], **clipped})
    found = convert_to(adapters()[framework], reading_of(spec, dataset_size=40_000))
    assert found.back is not None, found.refused
    return found.back


def steps_per_rollout(reading: Reading) -> object:
    """Optimizer steps per rollout: a number, or the parts that the rollout is cut into."""
    assert reading.spec is not None
    return reading.derived["optimizer_steps_per_rollout"] or reading.spec.optimizer_step.parts_per_rollout


def keeps_its_promises(before: Reading, found: Scaling, world_size: int) -> None:
    """Every choice is legal to its framework, is of the kind that its title says, and names what it does not keep."""
    assert before.spec is not None
    assert found.choices or found.problems, "neither a choice nor a reason"
    wanted = [choice for choice in found.choices if choice.spec.topology.world_size == world_size]
    assert (found.verdict == "kept") == any(not choice.lost for choice in wanted)
    for choice in found.choices:
        legal_and_of_its_kind(choice, before)
        assert (choice not in wanted) == (choice.title == "fewer devices")


def legal_and_of_its_kind(choice: Choice, before: Reading) -> None:
    assert before.spec is not None
    context = Context(
        framework_version=before.framework_version,
        world_size=choice.spec.topology.world_size,
        dataset_size=before.dataset_size,
    )
    again = read_source(Source(values=choice.written.values), adapters()[before.framework], context)
    assert (again.verdict, again.spec) == ("valid", choice.spec), choice.title
    lost = {difference.field for difference in choice.lost}
    changed = {path for path in KEPT if leaves(choice.spec)[path] != leaves(before.spec)[path]}
    assert changed <= lost, f"{choice.title} does not name {changed - lost}"
    assert steps_per_rollout(choice.reading) == steps_per_rollout(before), choice.title
    assert ("rollout.completions_per_prompt" in changed) == (choice.title == "another group size")
    elsewhere = all(path.startswith(("topology.", "micro_batch.", "native.defect.")) for path in lost)
    assert elsewhere or choice.title != "fewer devices"
    assert not (choice.title == "the same run" and lost)


@pytest.mark.parametrize("framework", sorted(adapters()))
@pytest.mark.parametrize("world_size", [*POWERS, *PRIMES])
def test_every_framework_scales_to_powers_of_two_and_primes(framework: str, world_size: int) -> None:
    before = native_reading(framework, "two steps per rollout")
    start = time.process_time()
    found = scale_with(adapters()[framework], before, world_size)
    assert time.process_time() - start < 1, "seconds of CPU"
    keeps_its_promises(before, found, world_size)


@pytest.mark.parametrize("framework", sorted(adapters()))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world_size=st.integers(1, 4096), steps=st.sampled_from(sorted(STEPS)))
def test_every_framework_scales_to_any_number_of_devices(framework: str, world_size: int, steps: str) -> None:
    before = native_reading(framework, steps)
    keeps_its_promises(before, scale_with(adapters()[framework], before, world_size), world_size)


@pytest.mark.parametrize("framework", sorted(adapters()))
def test_every_framework_keeps_the_sizes_on_half_the_devices(framework: str) -> None:
    before = native_reading(framework, "two steps per rollout")
    assert before.spec is not None
    choice, *_ = scale_with(adapters()[framework], before, before.spec.topology.world_size // 2).choices
    assert choice.title == ("the same sizes" if choice.lost else "the same run")
    assert {path: leaves(before.spec)[path] for path in KEPT} == {path: leaves(choice.spec)[path] for path in KEPT}


def test_a_rollout_cut_into_parts_grows_with_the_devices_or_names_fewer() -> None:
    """Open-Instruct shares whatever a rollout has: more learners than completions are what it refuses."""
    sizes = {"num_unique_prompts_rollout": 16, "num_samples_per_prompt_rollout": 8, "num_learners_per_node": [4]}
    before = read_source(
        Source(values={**sizes, "num_mini_batches": 2}),
        adapters()["open_instruct"],
        Context(framework_version="2026.8.20", dataset_size=40_000),
    )
    assert before.spec is not None
    assert before.spec.optimizer_step.parts_per_rollout == 2
    found = scale_with(adapters()["open_instruct"], before, 192)
    keeps_its_promises(before, found, 192)
    assert [(choice.title, choice.spec.topology.world_size) for choice in found.choices] == [("fewer devices", 128)]


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


def test_devices_that_make_no_whole_replicas_offer_a_smaller_parallel_size_and_fewer_devices() -> None:
    spec = plain_spec(world_size=8, **{"topology.tensor_parallel": 4})
    found = scale_with(AnyAdapter(), reading_of(spec), 6)
    shapes = [(c.spec.topology.world_size, c.spec.topology.tensor_parallel) for c in found.choices]
    assert shapes == [(6, 2), (4, 4)]


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


def test_a_refusal_that_no_size_ends_ends_the_search_at_once() -> None:
    asked = 0

    class Never(NarrowAdapter):
        def write(self, spec, framework_version=None):  # type: ignore[no-untyped-def]  # as in the base
            nonlocal asked
            asked += 1
            raise CannotWrite("narrow", [Problem(("staleness.mode",), "only sync", ({"staleness.mode": "sync"},))])

    found = scale_with(Never(), reading_of(plain_spec(world_size=8)), 6)
    assert found.choices == ()
    assert found.problems == ("only sync",)
    assert asked <= 2  # once for the present settings


def test_a_micro_batch_is_the_one_that_the_refusal_offers_and_keeps_its_kind() -> None:
    """EasyR1 cuts by a budget of tokens: a scaled run does, too, in the largest cuts that fit."""
    adapter = adapters()["easyr1"]
    values = {"trainer.n_gpus_per_node": 8, "data.rollout_batch_size": 512, "worker.actor.global_batch_size": 128}
    values["worker.rollout.n"] = 5
    reading = adapter.read(Source(values=values), Context(framework_version="0.3.3.dev0"))
    found = scale_with(adapter, reading, 6)
    assert found.choices
    for choice in found.choices:
        assert "worker.actor.dynamic_batching" not in choice.settings, choice.settings
        assert choice.reading.native["worker.actor.micro_batch_size_per_device_for_update"] > 1


OF_TWO_ONE_GOES = """
import json
from registered import adapters
from batchbridge.comparing.scale import scale_with
from batchbridge.contract.reading import Context, Source

values = {"train.colocate_all": True, "vllm.num_engines": 4, "actor.num_gpus_per_node": 4, "ref.num_gpus_per_node": 4}
values |= {"vllm.enable_sleep": True, "ds.enable_sleep": True, "algo.kl.init_coef": 0.0, "algo.kl.use_loss": True}
adapter = adapters()["openrlhf"]
reading = adapter.read(Source(values=values), Context(framework_version="0.11.2"))
print(json.dumps([dict(choice.settings) for choice in scale_with(adapter, reading, 2).choices]))
"""


def test_a_choice_is_the_same_in_every_process() -> None:
    """Either of two settings may go; which one was once the first of a set, whose order each process draws anew."""
    found = set()
    for seed in ("1", "2", "3"):
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", OF_TWO_ONE_GOES], env=env, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert "null" in found.pop()
