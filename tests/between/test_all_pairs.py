"""Every ordered pair of the frameworks that this distribution registers; a new adapter needs no change here."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import pytest
from registered import adapters
from toys import plain_spec, reading_of

from batchbridge.comparing.convert import Conversion, convert_to
from batchbridge.comparing.diff_sources import diff
from batchbridge.comparing.effects import leaves
from batchbridge.comparing.scale import scale_with
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.reading.read import read_source

CASES = {
    "one step per rollout": {"optimizer_step.completions_per_step": 128},
    "four steps per rollout": {"optimizer_step.completions_per_step": 32},
    "two passes": {"optimizer_step.passes_per_rollout": 2},
    "KL in the loss": {
        "objective.kl_placement": "loss",
        "objective.kl_coefficient": 0.1,
        "objective.kl_estimator": "k3",
    },
    "a number of steps": {"horizon.epochs": None, "horizon.optimizer_steps": 40},
}


@cache
def native_reading(framework: str, case: str) -> Reading:
    """What the framework reads of its own nearest configuration of a case."""
    found = convert_to(adapters()[framework], reading_of(plain_spec(**CASES[case]), dataset_size=160))
    assert found.back is not None, found.refused
    return found.back


def account(found: Conversion) -> dict[str, str]:
    return {field.field: field.status for field in found.fields}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("one", "other"), list(permutations(sorted(adapters()), 2)))
def test_a_conversion_is_written_valid_and_wholly_accounted_for(one: str, other: str, case: str) -> None:
    source = native_reading(one, case)
    found = convert_to(adapters()[other], source)
    assert found.back is not None, found.refused
    assert found.back.spec is not None, found.back.findings
    assert source.spec is not None
    assert found.back.verdict == "valid", [f.message for f in found.back.findings if f.severity == "error"]
    before, after = leaves(source.spec), leaves(found.back.spec)
    silent = [
        path for path, status in account(found).items() if status == "exact" and before.get(path) != after.get(path)
    ]
    assert [path for path in silent if not path.startswith(("loss.kl.", "loss.entropy."))] == []


@pytest.mark.parametrize(("one", "other"), list(permutations(sorted(adapters()), 2)))
def test_there_and_back_is_the_identity_on_what_is_exact_both_times(one: str, other: str) -> None:
    source = native_reading(one, "one step per rollout")
    there = convert_to(adapters()[other], source)
    assert there.back is not None
    back = convert_to(adapters()[one], there.back, version=source.framework_version)
    assert back.back is not None
    assert back.back.spec is not None
    assert source.spec is not None
    before, after = leaves(source.spec), leaves(back.back.spec)
    exact = [p for p, status in account(there).items() if status == "exact" == account(back)[p] and "loss." not in p]
    assert {path: before[path] for path in exact} == {path: after[path] for path in exact}
    for plan in (
        "optimizer_step.completions_per_step",
        "rollout.prompts_per_rollout",
        "rollout.completions_per_prompt",
    ):
        assert plan in exact


@pytest.mark.parametrize("framework", sorted(adapters()))
def test_a_reading_is_equivalent_to_itself(framework: str) -> None:
    reading = native_reading(framework, "four steps per rollout")
    assert diff(reading, reading).verdict == "equivalent"


@pytest.mark.parametrize("world_size", [1, 2, 8, 16])
@pytest.mark.parametrize("framework", sorted(adapters()))
def test_devices_that_divide_keep_the_plan(framework: str, world_size: int) -> None:
    found = scale_with(adapters()[framework], native_reading(framework, "one step per rollout"), world_size)
    (choice, *_) = found.choices
    assert choice.spec.topology.world_size == world_size
    assert choice.spec.optimizer_step.completions_per_step == 128
    assert choice.spec.rollout.prompts_per_rollout == 16


@pytest.mark.parametrize("dataset_size", [None, 8000])
def test_what_the_target_can_say_is_kept_though_other_fields_are_lost(dataset_size: int | None) -> None:
    recipe = {"num_generations": 8, "per_device_train_batch_size": 8, "beta": 0.001, "num_train_epochs": 3}
    context = Context(framework_version="1.16.0", world_size=8, dataset_size=dataset_size)
    found = convert_to(adapters()["easyr1"], read_source(Source(values=recipe), adapters()["trl"], context))
    assert account(found)["carried.lr_schedule"] == "inexpressible"
    assert account(found)["horizon.epochs"] == "exact"
