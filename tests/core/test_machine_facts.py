"""What only the machine decides is answered by who knows the machine, and never by this one."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge
from batchbridge.cli.main import main
from batchbridge.contract.reading import Reading

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=$((N*4)) "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=$N "
    "trainer.nnodes=$WORLD_SIZE\n"
)
COUNTED = f"#!/bin/bash\nN=$(nvidia-smi -L | wc -l)\n{VERL}"
GRPO = "trl grpo {} --num_generations 8 --per_device_train_batch_size 8 --max_completion_length 9\n"


def read(tmp_path: Path, text: str, **env: str) -> Reading:
    file = tmp_path / "run.sh"
    file.write_text(text, encoding="utf-8")
    named = {f"--{name}" if name in ("nodes", "gpus") else name: value for name, value in env.items()}
    if "verl" in text:
        return batchbridge.read(file, version="0.7.1", env=named)
    return batchbridge.read(file, version="1.16.0", env=named, world_size=None if "launch" in text else 1)


def test_nodes_and_gpus_answer_the_machines_questions(tmp_path: Path) -> None:
    assert read(tmp_path, COUNTED).verdict == "undecided"
    reading = read(tmp_path, COUNTED, nodes="2", gpus="8")
    assert (reading.verdict, reading.derived["completions_per_step"]) == ("valid", 256)
    assert reading.spec is not None
    assert reading.spec.topology.world_size == 16


@pytest.mark.parametrize(
    "count",
    [
        *("echo $CUDA_VISIBLE_DEVICES | awk -F',' '{print NF}'", "echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | wc -l"),
        *("echo \"$CUDA_VISIBLE_DEVICES\" | tr ',' ' ' | wc -w", "awk -F, '{print NF}' <<< \"$CUDA_VISIBLE_DEVICES\""),
    ],
)
def test_devices_that_a_script_lists_are_counted_and_those_that_nobody_lists_are_asked_for(
    tmp_path: Path, count: str
) -> None:
    text = COUNTED.replace("nvidia-smi -L | wc -l", count)
    assert {fix.text for one in read(tmp_path, text, nodes="1").findings for fix in one.fixes} >= {
        "say how many devices a node has: --gpus DEVICES"
    }
    assert read(tmp_path, text, nodes="1", gpus="8").derived["completions_per_step"] == 256
    listed = text.replace("\n", "\nexport CUDA_VISIBLE_DEVICES=0,1,2,5\n", 1)
    assert read(tmp_path, listed, nodes="1").derived["completions_per_step"] == 128
    assert read(tmp_path, listed, nodes="1", gpus="8").derived["completions_per_step"] == 128


def test_the_schedulers_lines_answer_them_too(tmp_path: Path) -> None:
    asked = "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
    reading = read(tmp_path, COUNTED.replace("\n", f"\n{asked}", 1))
    assert reading.spec is not None
    assert (reading.verdict, reading.spec.topology.world_size) == ("valid", 8)
    started = "accelerate launch --num_processes $((SLURM_NNODES*SLURM_GPUS_ON_NODE)) -m trl.scripts.grpo"
    launch = f"#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gres=gpu:a100:4\n{started} --num_generations 8\n"
    assert read(tmp_path, launch).native["num_processes"] == 8


def test_env_answers_a_variable_that_the_script_computes(tmp_path: Path) -> None:
    reading = read(tmp_path, COUNTED.replace("nvidia-smi -L | wc -l", "count_them"), N="8", WORLD_SIZE="1")
    assert reading.verdict == "valid"


def test_a_question_names_the_option_that_answers_it(tmp_path: Path) -> None:
    fixes = [fix.text for one in read(tmp_path, COUNTED).findings for fix in one.fixes]
    assert "say how many devices a node has: --gpus DEVICES" in fixes


def test_no_number_of_devices_is_taken_from_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("num_generations: 14\nper_device_train_batch_size: 16\nlearning_rate: 1.0e-6\n", encoding="utf-8")
    assert main(("check", str(recipe), "--framework-version", "1.16.0")) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  valid on 7, 14, 21, ")
    assert lines[2].startswith("  for example on 7 devices: 8 prompts x 14 = 112 completions per rollout")


@pytest.mark.parametrize("flag", ["--bf16", "--gradient_checkpointing", "--output_dir"])
@pytest.mark.parametrize(
    ("before", "word"), [("E=( $(cat x) )\n", '"${E[@]}"'), ("", "$EXTRA_ARGS"), ("", '"$@" $ARGS')]
)
def test_an_unknown_array_behind_a_flag_leaves_the_run_open_and_is_blamed(
    tmp_path: Path, flag: str, before: str, word: str
) -> None:
    reading = read(tmp_path, before + GRPO.format(f"{flag} {word}"))
    assert reading.verdict == "undecided"
    assert any(one.code == "BB011" and "may hold settings" in one.message for one in reading.findings)
    assert not any("remove" in fix.text for one in reading.findings for fix in one.fixes)


def test_a_variable_that_is_one_value_is_none_of_them(tmp_path: Path) -> None:
    assert read(tmp_path, GRPO.format("--output_dir $OUT")).verdict == "valid"


PROGRAM = """\
from trl import GRPOConfig, GRPOTrainer
arguments = GRPOConfig(output_dir="out", per_device_train_batch_size=6, num_generations=3)
trainer = GRPOTrainer(model="some/model", args=arguments, reward_funcs=[len])
trainer.train()
"""


@pytest.mark.parametrize(
    ("script", "devices"),
    [
        ("#SBATCH --gres=gpu:1\npython train.py", 1),
        ("#SBATCH --nodes=1\n#SBATCH --gpus-per-node=a100:1\nsrun python3.11 train.py", 1),
        ("CUDA_VISIBLE_DEVICES=3 python train.py", 1),
        ("export CUDA_VISIBLE_DEVICES=0\npython -m train", 1),
        ("#SBATCH --gres=gpu:4\nCUDA_VISIBLE_DEVICES=0 python train.py", 1),
        ("#SBATCH --gres=gpu:1\naccelerate launch --num_processes 2 train.py", 2),
        ("#SBATCH --gres=gpu:1\ntorchrun --nproc_per_node 2 train.py", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", None),  # shared in one process, which is no world size
        ("CUDA_VISIBLE_DEVICES=$GPUS python train.py", None),
        ("#SBATCH --gres=gpu:2\npython train.py", None),
        ("#SBATCH --nodes=2\n#SBATCH --gres=gpu:1\nsrun python train.py", None),
        ("#SBATCH --gres=gpu:1\naccelerate launch train.py", None),
        ("python train.py", None),
    ],
)
def test_one_visible_device_is_the_world_of_a_program_that_no_launcher_starts(
    tmp_path: Path, script: str, devices: int | None
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "run.slurm").write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    reading = batchbridge.read(tmp_path / "run.slurm", version="1.16.0")
    assert (None if reading.spec is None else reading.spec.topology.world_size) == devices, reading.findings
