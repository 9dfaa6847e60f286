"""Commands that start ms-swift: read with ms-swift's own defaults, of the release that is named, and not with TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import batchbridge as bb
from batchbridge.contract.reading import Reading

SIZES = {"num_generations": 4, "per_device_train_batch_size": 4}


def read(folder: Path, *words: str, pin: str = "", world_size: int = 4, **options: Any) -> Reading:
    file = folder / "run.sh"
    settings = " ".join((f"--{key} {value}" for key, value in (SIZES | options).items() if value is not None))
    file.write_text(f"swift rlhf --rlhf_type grpo --model m --dataset d {settings} {' '.join(words)}\n")
    if pin:
        (folder / "requirements.txt").write_text(f"ms-swift=={pin}\n")
    return bb.read(file, version="0.20.0" if pin == "3.8.0" else "0.16.1" if pin else "0.29.1", world_size=world_size)


def values(reading: Reading) -> dict[str, Any]:
    assert reading.spec is not None, reading.findings
    return dict(reading.spec.values)


def codes(reading: Reading) -> set[str]:
    return {one.code for one in reading.findings if one.severity == "error"}


def test_what_a_command_leaves_out_is_ms_swifts_default(tmp_path: Path) -> None:
    reading = read(tmp_path)
    found = values(reading)
    assert found["loss.policy.aggregation"] == "sequence_mean"
    assert (found["objective.kl_coefficient"], found["objective.kl_clamp"]) == (0.04, 10.0)
    assert (found["carried.beta2"], found["carried.weight_decay"]) == (0.95, 0.1)
    assert (found["carried.learning_rate"], found["carried.temperature"]) == (1e-4, 0.9)
    assert found["carried.max_completion_tokens"] == 512
    origin = reading.provenance["carried.beta2"]
    assert (origin.origin, origin.detail) == ("default", "default of ms-swift 4.6.0 (the newest; none is named)")
    assert codes(reading) == set()


def test_what_a_command_says_is_kept(tmp_path: Path) -> None:
    found = values(read(tmp_path, beta=0.0, loss_type="dapo", adam_beta2=0.999, tuner_type="full", response_length=99))
    assert found["loss.policy.aggregation"] == "token_mean"
    assert (found["objective.kl_coefficient"], found["carried.beta2"]) == (0.0, 0.999)
    assert (found["carried.learning_rate"], found["carried.max_completion_tokens"]) == (1e-5, 99)


@pytest.mark.parametrize(("micro", "group"), [(None, 4), (2, 8), (4, 4)])
def test_sizes_are_those_of_its_own_defaults(tmp_path: Path, micro: int | None, group: int) -> None:
    reading = read(tmp_path, per_device_train_batch_size=micro, num_generations=group)
    assert reading.derived is not None
    assert reading.derived["completions_per_step"] == (micro or 1) * 4


def test_a_release_before_fills_the_optimizer_step_to_sixteen_completions(tmp_path: Path) -> None:
    reading = read(tmp_path, pin="3.4.0", per_device_train_batch_size=2, num_generations=2, world_size=2)
    assert reading.derived is not None
    assert reading.derived["completions_per_step"] == 16
    assert values(reading)["objective.kl_clamp"] is None


def test_the_release_that_the_repository_pins_decides(tmp_path: Path) -> None:
    reading = read(tmp_path, pin="3.8.0")
    assert reading.provenance["carried.beta2"].detail == "default of ms-swift 3.8.0"
    assert values(reading)["carried.top_p"] == 0.9


@pytest.mark.parametrize(
    ("pin", "trl", "expected"),
    [
        ("3.6.4", "0.16.1", {"carried.top_p": 0.9, "objective.kl_clamp": None}),
        ("4.0.2", "0.16.1", {"carried.top_p": 0.9, "objective.kl_clamp": None}),
        ("4.0.3", "0.29.1", {"carried.top_p": 1.0, "objective.kl_clamp": None}),
        ("4.0.4", "0.29.1", {"carried.top_p": 1.0, "objective.kl_clamp": 10.0}),
    ],
)
def test_what_changed_between_releases(tmp_path: Path, pin: str, trl: str, expected: dict[str, Any]) -> None:
    read(tmp_path, pin=pin)
    found = values(bb.read(tmp_path / "run.sh", version=trl, world_size=4))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("pin", "steps"), [("3.6.4", 16), ("3.7.0", 4)])
def test_the_last_release_that_fills_the_step(tmp_path: Path, pin: str, steps: int) -> None:
    reading = read(tmp_path, pin=pin, per_device_train_batch_size=2, num_generations=2, world_size=2)
    assert reading.derived is not None
    assert reading.derived["completions_per_step"] == steps


@pytest.mark.parametrize(
    ("pin", "takes", "refuses"),
    [("3.4.1", "0.17.0", "0.18.0"), ("3.8.3", "0.20.0", "0.21.0"), ("4.0.2", "0.28.0", "0.29.0")],
)
def test_the_releases_of_trl_that_a_release_takes(tmp_path: Path, pin: str, takes: str, refuses: str) -> None:
    read(tmp_path, pin=pin)
    assert "BB-TRL-100" not in codes(bb.read(tmp_path / "run.sh", version=takes, world_size=4))
    assert "BB-TRL-100" in codes(bb.read(tmp_path / "run.sh", version=refuses, world_size=4))


@pytest.mark.parametrize("pin", ["3.0.0", "3.3.1"])
def test_a_release_that_is_not_known_leaves_the_run_undecided(tmp_path: Path, pin: str) -> None:
    assert "BB-TRL-105" in codes(read(tmp_path, pin=pin))


def test_a_release_of_trl_that_it_does_not_take_is_undecided(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    read(tmp_path)
    found = bb.read(file, version="1.16.0", world_size=4)
    assert "BB-TRL-100" in codes(found)
    assert bb.check(file, world_size=4).reading.framework_version == "0.29.1"


@pytest.mark.parametrize("setting", ["dynamic_sample", "overlong_filter", "async_generate", "kl_in_reward"])
def test_a_setting_of_its_own_that_changes_what_is_trained_is_undecided(tmp_path: Path, setting: str) -> None:
    (found,) = [one for one in read(tmp_path, **{setting: "true"}).findings if one.code == "BB-TRL-105"]
    assert found.undecided
    assert f"{setting} = True" in found.message
    assert "BB-TRL-105" not in codes(read(tmp_path, **{setting: "false"}))


def test_a_value_that_trl_of_that_version_refuses_may_be_ms_swifts_own(tmp_path: Path) -> None:
    read(tmp_path, scale_rewards="none")
    reading = bb.read(tmp_path / "run.sh", version="0.21.0", world_size=4)
    assert (reading.verdict, codes(reading)) == ("undecided", {"BB-TRL-004"})
    assert bb.read(tmp_path / "run.sh", version="0.29.1", world_size=4).spec is not None


@pytest.mark.parametrize("loss", ["real", "sapo"])
def test_a_loss_of_its_own_is_undecided_by_its_name(tmp_path: Path, loss: str) -> None:
    reading = read(tmp_path, loss_type=loss)
    assert codes(reading) == {"BB-TRL-105"}
    assert f"loss_type = {loss}" in " ".join(one.message for one in reading.findings)


def test_its_other_settings_are_told_in_one_note_and_a_slip_is_still_found(tmp_path: Path) -> None:
    reading = read(tmp_path, vllm_max_num_seqs=4)
    (note,) = [one for one in reading.findings if one.code == "BB038"]
    assert "3 settings of its own, not judged: model, dataset, vllm_max_num_seqs" in note.message
    assert {one.code for one in reading.findings if one.severity == "warning"} == {"BB041"}
    slip = read(tmp_path, num_generations=None, num_generation=4)
    assert "BB-TRL-003" in {one.code for one in slip.findings}


def test_its_other_methods_are_not_judged(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("swift rlhf --rlhf_type dpo --model m --dataset d\n")
    assert codes(bb.read(file, version="0.29.1", world_size=4)) == {"BB-TRL-081"}


FILE = """rlhf_type: grpo
model: m
dataset: [d]
num_generations: 8
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
"""
OF_TWO = f"{FILE}ENV:\n  NPROC_PER_NODE: 2\n  MAX_PIXELS: 1\n"


@pytest.mark.parametrize(
    ("command", "file", "expected"),
    [
        ("swift rlhf g.yaml", OF_TWO, (2, 8, 16)),
        ("swift rlhf g.yaml --num_generations 4", OF_TWO, (4, 4, 16)),
        ("NPROC_PER_NODE=4 swift rlhf g.yaml", OF_TWO, (4, 8, 32)),
        ("NPROC_PER_NODE=4 swift rlhf g.yaml", FILE, (4, 8, 32)),
        ("NPROC_PER_NODE=4 swift rlhf --config g.yaml", FILE, (4, 8, 32)),
        ("NPROC_PER_NODE=4 python swift/cli/rlhf.py g.yaml", FILE, (4, 8, 32)),
    ],
)
def test_a_file_of_settings_is_its_first_argument(
    tmp_path: Path, command: str, file: str, expected: tuple[int, int, int]
) -> None:
    (tmp_path / "g.yaml").write_text(file, encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text(f"{command}\n", encoding="utf-8")
    reading = bb.read(script, version="0.29.1")
    assert reading.derived is not None, reading.findings
    found = [values(reading)[f"rollout.{name}"] for name in ("prompts_per_rollout", "completions_per_prompt")]
    assert (*found, reading.derived["completions_per_step"]) == expected
    assert not codes(reading)


def test_a_file_of_settings_that_is_not_here_leaves_the_run_undecided(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("NPROC_PER_NODE=4 swift rlhf away.yaml --num_generations 4\n", encoding="utf-8")
    reading = bb.read(script, version="0.29.1")
    assert reading.verdict == "undecided"
    assert "BB-TRL-009" in codes(reading)


def test_a_file_alone_is_read_as_its_command_is(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(OF_TWO, encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("swift rlhf g.yaml\n", encoding="utf-8")
    alone, started = (bb.read(one, version="0.29.1") for one in (file, script))
    assert values(alone) == values(started)
    assert alone.verdict == started.verdict == "undecided", "its trainer is its own"
    assert alone.condition is not None
    assert started.condition is not None
