"""verl's programs that generate while they train, read without verl."""

from __future__ import annotations

from typing import Any

import pytest

import batchbridge
from batchbridge import Where
from batchbridge.contract.reading import Context, Source
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_verl.config import VerlAdapter

MODULE = "verl.experimental.fully_async_policy.fully_async_main"
ACTOR = "actor_rollout_ref.actor."
WORDS = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=0",
    "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=16",
    f"{ACTOR}ppo_mini_batch_size=32",
    f"{ACTOR}use_dynamic_bsz=True",
    "trainer.nnodes=2",
    "trainer.n_gpus_per_node=4",
    "async_training.require_batches=4",
    "rollout.nnodes=2",
)


def read(*words: str, module: str = MODULE, version: str = "0.9.1") -> Any:
    argv = ("python3", "-m", module, *WORDS, *words)
    return read_source(Source(argv=argv), VerlAdapter(), Context(framework_version=version))


def codes(reading: Any) -> list[str]:
    return [finding.code for finding in reading.findings if finding.code.startswith("BB-VERL")]


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.9.1"])
def test_a_rollout_is_what_the_trainer_takes_from_the_queue_at_once(version: str) -> None:
    reading = read("rollout.total_rollout_steps=12800", version=version)
    assert codes(reading) == ["BB-VERL-094"]
    assert reading.verdict == "undecided"
    assert read(version=version).verdict == "invalid", "100 prompts by default, of which no rollout of 128 is filled"
    spec = reading.spec
    assert (spec.rollout.prompts_per_rollout, spec.rollout.completions_per_prompt) == (128, 16)
    assert (spec.optimizer_step.completions_per_step, spec.topology.world_size) == (512, 8)
    assert spec.rollout.prompts_per_generation_batch == 1
    assert spec.order.last_rollout == "wrap"


def test_the_run_ends_with_its_prompts_or_its_epochs() -> None:
    horizon = read("rollout.total_rollout_steps=51300", "trainer.total_epochs=10").spec.horizon
    assert horizon.lengths == {"rollouts": 400, "epochs": 10.0}
    assert read("rollout.total_rollout_steps=null").spec.horizon.lengths == {"epochs": 30.0}
    steps = "trainer.total_training_steps=7"  # which that trainer does not read
    assert read("rollout.total_rollout_steps=null", steps).spec.horizon.lengths == {"epochs": 30.0}


@pytest.mark.parametrize(("threshold", "mode", "maximum"), [("0", "bounded", 0), ("0.1", "unbounded", None)])
def test_the_age_of_completions_is_counted_in_weights(threshold: str, mode: str, maximum: int | None) -> None:
    staleness = read(f"async_training.staleness_threshold={threshold}").spec.staleness
    assert (staleness.mode, staleness.maximum, staleness.unit) == (mode, maximum, "weight_versions")


@pytest.mark.parametrize("program", ["one_step_off_policy.main_ppo", "fully_async_policy.fully_async_main"])
@pytest.mark.parametrize(("said", "old"), [((), "sampler"), (("=False",), "rollout_start")])
def test_their_own_defaults_take_the_samplers_log_probabilities(program: str, said: tuple[str, ...], old: str) -> None:
    words = [f"algorithm.rollout_correction.bypass_mode{word}" for word in said]
    if "one_step" in program:
        words.append("data.train_batch_size=64")
    reading = read(*words, module=f"verl.experimental.{program}")
    assert reading.spec.objective.old_logprobs == old


def test_the_main_program_has_none_of_them() -> None:
    words = [word for word in WORDS if not word.startswith(("async", "rollout.", "data.train_batch_size"))]
    reading = batchbridge.read(["python3", "-m", "verl.trainer.main_ppo", *words], version="0.9.1")
    assert reading.spec is not None
    assert reading.spec.objective.old_logprobs == "rollout_start"
    assert reading.spec.staleness.mode == "sync"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("data.train_batch_size=64", "data.train_batch_size"),
        ("data.gen_batch_size=2", "data.gen_batch_size"),
        ("actor_rollout_ref.hybrid_engine=True", "actor_rollout_ref.hybrid_engine"),
        ("actor_rollout_ref.rollout.calculate_log_probs=False", "actor_rollout_ref.rollout.calculate_log_probs"),
        ("actor_rollout_ref.rollout.mode=sync", "actor_rollout_ref.rollout.mode"),
        ("async_training.staleness_threshold=-1", "async_training.staleness_threshold"),
        ("async_training.trigger_parameter_sync_step=0", "async_training.trigger_parameter_sync_step"),
        ("async_training.require_batches=0", "async_training.require_batches"),
        (f"{ACTOR}ppo_mini_batch_size=0", f"{ACTOR}ppo_mini_batch_size"),
    ],
)
def test_what_the_program_asserts_is_an_error_whose_fix_fixes(word: str, key: str) -> None:
    found = [finding for finding in read(word).findings if finding.code == "BB-VERL-093"]
    assert len(found) == 1
    assert found[0].message.startswith(f"{key} = ")
    assert list(found[0].fixes[0].changes) == [key]
    mended = [f"{name}={value}" for name, value in found[0].fixes[0].changes.items()]
    assert "BB-VERL-093" not in codes(read(word, *mended))


def test_keys_that_the_program_lost_are_errors_there_and_free_elsewhere() -> None:
    # Hydra: 'total_epochs' is in no struct of 0.8.0 to 0.9.1, though published scripts still say it.
    assert codes(read("rollout.total_epochs=10", "async_training.use_rollout_log_probs=True")).count("BB-VERL-003") == 2


@pytest.mark.parametrize("version", ["0.6.1", "0.7.1"])
def test_a_release_without_the_program_is_named(version: str) -> None:
    reading = read(version=version)
    assert (reading.spec, reading.verdict, codes(reading)) == (None, "undecided", ["BB-VERL-007"])
    assert version in reading.findings[0].message


def test_a_configuration_of_the_programs_is_the_programs() -> None:
    values: dict[str, Any] = {"defaults": ["fully_async_ppo_trainer", "_self_"]}
    for word in WORDS:
        key, value = word.split("=")
        group, name = values, key.split(".")
        for part in name[:-1]:
            group = group.setdefault(part, {})
        group[name[-1]] = {"False": False, "True": True}.get(value, int(value) if value.isdigit() else value)
    reading = VerlAdapter().read(load_source(values), Context(framework_version="0.9.1"))
    assert reading.spec == read().spec


def test_running_it_is_refused_by_name_and_explained_all_the_same() -> None:
    enforcement = batchbridge.check(["python3", "-m", MODULE, *WORDS], version="0.9.1").enforcement
    assert enforcement is not None
    assert enforcement.verdict == "refused"
    assert "fully_async" in [obstacle.name for obstacle in enforcement.obstacles]
    behaviour = read().behaviour
    assert any("generated first is trained first" in text for text in behaviour.undecided)


def test_the_finding_points_at_what_was_said() -> None:
    found = next(finding for finding in read().findings if finding.code == "BB-VERL-094")
    assert found.where[0] == Where("async_training.require_batches", 4)
