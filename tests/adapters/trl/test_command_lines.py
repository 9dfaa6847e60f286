"""TRL's and Open-R1's command lines: recipes that they name, and the processes that a launcher starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge

RECIPE = "num_generations: 8\nper_device_train_batch_size: 4\nmax_completion_length: 64\nlearning_rate: 1.0e-6\n"


def read(folder: Path, command: str, name: str = "run.sh", recipe: str = RECIPE) -> batchbridge.Reading:
    (folder / "recipe.yaml").write_text(recipe)
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/bash\n{command}\n")
    return batchbridge.read(script, version="1.16.0")


def test_a_recipe_that_the_command_names_is_read(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2 --per_device_train_batch_size 8")
    assert (reading.framework, reading.verdict) == ("trl", "valid")
    assert reading.spec is not None
    assert (reading.spec.topology.world_size, reading.spec.optimizer_step.completions_per_step) == (2, 16)


def test_places_of_recipe_and_command_are_kept_apart(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2 \\\n  --learning_rate 1e-5")
    group, rate = (reading.provenance[p] for p in ("rollout.completions_per_prompt", "carried.learning_rate"))
    assert (Path(str(group.file)).name, group.line) == ("recipe.yaml", 1)
    assert (Path(str(rate.file)).name, rate.line) == ("run.sh", 3)


def test_a_recipe_is_found_from_a_folder_above_the_script(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2", "scripts/slurm/run.slurm")
    assert reading.verdict == "valid"


def test_a_recipe_that_is_not_there_is_undecided(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config nowhere.yaml --num_processes 2")
    assert "BB-TRL-009" in [finding.code for finding in reading.findings]
    assert reading.verdict == "undecided"


def test_accelerate_says_the_world_size(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        "accelerate launch --num_processes 4 grpo.py --num_generations 8 --steps_per_generation 1 "
        "--gradient_accumulation_steps 1 --per_device_train_batch_size 4 --max_completion_length 9",
    )
    assert reading.spec is not None
    assert (reading.spec.topology.world_size, reading.spec.optimizer_step.completions_per_step) == (4, 16)
    assert "accelerate launch" in reading.provenance["topology.world_size"].detail


def test_the_file_that_accelerate_is_given_says_the_world_size(tmp_path: Path) -> None:
    (tmp_path / "z3.yaml").write_text("num_processes: 3\n")
    reading = read(
        tmp_path,
        "accelerate launch --config_file z3.yaml grpo.py --num_generations 6 --beta 0.1 "
        "--steps_per_generation 1 --max_completion_length 9 --per_device_train_batch_size 4",
    )
    assert reading.spec is not None
    assert reading.spec.topology.world_size == 3


def test_open_r1_is_known_by_its_script(tmp_path: Path) -> None:
    reading = read(tmp_path, "accelerate launch --num_processes 2 src/open_r1/grpo.py --config recipe.yaml")
    assert reading.framework == "open_r1"
    assert reading.spec is not None
    assert reading.spec.rollout.completions_per_prompt == 8


SFT = "packing: false\nmax_length: 512\nper_device_train_batch_size: 3\ngradient_accumulation_steps: 8\n"


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        ("trl sft --config recipe.yaml", "trl"),
        ("python -m trl.scripts.sft --config recipe.yaml", "trl"),
        ("accelerate launch --num_processes 7 src/open_r1/sft.py --config recipe.yaml", "open_r1"),
        ("accelerate launch --num_processes 7 src/open_r1/sft.py --per_device_train_batch_size 2", "open_r1"),
    ],
)
def test_supervised_fine_tuning_is_recognised_and_not_judged(tmp_path: Path, command: str, framework: str) -> None:
    reading = read(tmp_path, command, recipe=SFT)
    assert (reading.framework, reading.verdict, reading.spec) == (framework, "undecided", None)
    assert [finding.code for finding in reading.findings] == ["BB-TRL-081"]


def test_a_recipe_of_supervised_fine_tuning_is_recognised_by_its_keys(tmp_path: Path) -> None:
    recipe = tmp_path / "config.yaml"
    recipe.write_text(SFT)
    (finding,) = batchbridge.read(recipe, version="1.16.0").findings
    assert (finding.code, finding.undecided, finding.where[0].line) == ("BB-TRL-081", True, 1)


def test_a_filter_of_prompts_is_recognised_and_not_judged(tmp_path: Path) -> None:
    recipe = tmp_path / "filter.yaml"
    recipe.write_text("num_generations: 8\nreward_funcs: [accuracy]\npass_rate_min: 0.1\noutput_dataset_name: d\n")
    found = batchbridge.read(recipe, framework="trl", version="0.18.0", world_size=8)
    (finding,) = (finding for finding in found.findings if finding.severity == "error")
    assert (found.verdict, finding.code, finding.where[0].key) == ("undecided", "BB-TRL-081", "pass_rate_min")
    assert "a filter of prompts by their pass rate" in finding.message


def test_a_grpo_recipe_with_a_key_of_supervised_fine_tuning_is_judged(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2", recipe=RECIPE + "packing: false\n")
    assert [finding.code for finding in reading.findings if finding.severity == "error"] == ["BB-TRL-003"]


def test_a_script_that_fine_tunes_first_is_read_by_its_grpo_command(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl sft --config sft.yaml\ntrl grpo --config recipe.yaml --num_processes 2")
    assert reading.verdict == "valid"


@pytest.mark.parametrize(("version", "fix"), [("0.16.1", None), ("0.18.0", "dr_grpo"), ("1.16.0", "dapo")])
def test_the_nearest_loss_type_is_one_that_the_version_has(version: str, fix: str | None) -> None:
    given = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    given |= {"loss_type": "bnpo"} if fix else {}
    reading = batchbridge.read(given, framework="trl", version=version, world_size=2)
    (found,) = [finding for finding in reading.findings if finding.code == "BB-TRL-062"]
    assert [each.changes for each in found.fixes] == ([{"loss_type": fix}] if fix else [])
