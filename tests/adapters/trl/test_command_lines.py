"""TRL's and Open-R1's command lines: recipes that they name, and the processes that a launcher starts."""

from __future__ import annotations

from pathlib import Path

import batchbridge

RECIPE = "num_generations: 8\nper_device_train_batch_size: 4\nmax_completion_length: 64\nlearning_rate: 1.0e-6\n"


def read(folder: Path, command: str, name: str = "run.sh") -> batchbridge.Reading:
    (folder / "recipe.yaml").write_text(RECIPE)
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
