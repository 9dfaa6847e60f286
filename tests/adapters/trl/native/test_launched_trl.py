"""`batchbridge run` starts TRL in the ways that people start it; each is a process tree of its own, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.running.telling import LOG
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer

ROOT = Path(__file__).parents[4]
SCRIPT = str(Path(__file__).parent / "launched_script.py")
BIN = Path(sys.executable).parent
TWO = (
    "--multi_gpu",
    "--num_processes",
    "2",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
    "--dynamo_backend",
    "no",
)
"""Accelerate starts several processes without MPI only for GPUs; the script itself asks for gloo."""
COMMANDS = {
    "python": (sys.executable, SCRIPT),
    "torchrun": (str(BIN / "torchrun"), "--nproc_per_node=2", "--standalone", SCRIPT),
    "accelerate launch": (str(BIN / "accelerate"), "launch", *TWO, "--main_process_port", "0", SCRIPT),
}
RANKS = {"python": 1, "torchrun": 2, "accelerate launch": 2}


def started(folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`batchbridge run OPTIONS -- WORDS`, in `folder`."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [str(BIN / "batchbridge"), "run", *options, "--", *words]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_what_the_page_shows_is_what_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_outputs

    (block,) = [one for one in make_outputs.blocks(ROOT / "docs" / "launch.md") if Path(__file__).name in one.said]
    ((command, shown),) = block.commands
    assert command == "batchbridge run --ledger runs/a -- python train.py"
    ran = started(tmp_path, sys.executable, SCRIPT, str(tmp_path), "--my_flag", "3", options=("--ledger", "runs/a"))
    lines = [line for line in ran.stderr.splitlines() if line.startswith("batchbridge: ")]
    said = "\n".join(lines).replace(str(tmp_path), "/home/me")
    steps = len(list(read_steps(tmp_path / "runs" / "a")))
    assert make_outputs.fits(shown.replace("4 optimizer steps", f"{steps} optimizer steps"), said), said
    kept = (tmp_path / "runs" / "a" / LOG).read_text(encoding="utf-8")
    assert "training_step: " in kept, "every patch"
    assert "training_step: " not in ran.stderr


@pytest.mark.parametrize("how", COMMANDS)
def test_every_process_of_the_command_follows(tmp_path: Path, how: str) -> None:
    ran = started(tmp_path, *COMMANDS[how], str(tmp_path), "--my_flag", "3", options=("--ledger", "ledger"))
    assert ran.returncode == 0, ran.stderr[-4000:]
    ledger = Ledger(tmp_path / "ledger")
    assert [file.headers[0]["mode"] for file in ledger.files] == ["enforce"] * RANKS[how]
    assert len(list(read_steps(tmp_path / "ledger"))) == ledger.stop_step > 0


def test_another_frameworks_configuration_is_what_the_command_means(tmp_path: Path) -> None:
    """`--like` of a configuration that says nothing of devices: it is read once the trainer's are known."""
    like = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}
    (tmp_path / "like.yaml").write_text(yaml.safe_dump({**like, "num_train_epochs": 1, "loss_type": "grpo"}))
    options = ("--like", "like.yaml", "--ledger", "ledger", "--tokens-per-device", "60")
    ran = started(tmp_path, *COMMANDS["python"], str(tmp_path), options=options)
    assert ran.returncode == 0, ran.stderr[-4000:]
    (file,) = Ledger(tmp_path / "ledger").files
    spec = file.headers[0]["spec"]
    assert spec["optimizer_step"]["completions_per_step"] == 8
    assert spec["loss"]["policy"]["aggregation"] == "sequence_mean"
    assert spec["micro_batch"]["tokens_per_device"] == 60


def test_a_trainer_that_the_script_wraps_itself_is_left_alone(tmp_path: Path) -> None:
    ran = started(tmp_path, *COMMANDS["python"], str(tmp_path), "--wrapped", options=("--ledger", "ledger"))
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert not (tmp_path / "ledger").exists()
    assert Ledger(tmp_path / "by_hand").files[0].headers[0]["mode"] == "observe"


def test_a_script_without_a_trainer_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    ran = started(tmp_path, *COMMANDS["python"], str(tmp_path), "--none")
    assert ran.returncode == 4
    assert "ended with exit code 0 without a trainer that could be reached" in ran.stderr


def test_a_copy_of_the_trainer_is_refused_by_name_before_it_trains(tmp_path: Path) -> None:
    """Without the refusal it would train natively to its end, and only the exit code would say so."""
    ran = started(tmp_path, *COMMANDS["python"], str(tmp_path), "--copy")
    assert ran.returncode == 1
    assert "CannotAttach" in ran.stderr
    assert "trainer_copy: Qwen2VLGRPOTrainer" in ran.stderr


@pytest.mark.parametrize("program", [("-m", "trl.scripts.grpo"), ("trl", "grpo")], ids=["module", "command line"])
def test_trls_own_script_follows(tmp_path: Path, program: tuple[str, ...]) -> None:
    """`python -m trl.scripts.grpo`, and `trl grpo`, which starts Accelerate's launcher itself."""
    tiny_policy().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps({"prompt": f"{n} {n}"}) + "\n" for n in range(4)))
    (tmp_path / "rewards.py").write_text("def length(completions, **more):\n    return [len(c) for c in completions]\n")
    recipe = {
        "model_name_or_path": "model",
        "dataset_name": "data",
        "reward_funcs": ["rewards.length"],
        "output_dir": "out",
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = (sys.executable, *program) if program[0] == "-m" else (str(BIN / "trl"), *program[1:])
    ran = started(tmp_path, *words, "--config", "recipe.yaml", options=("--ledger", "ledger"))
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert len(list(read_steps(tmp_path / "ledger"))) == 2


def test_a_recipe_that_trl_would_refuse_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"num_generation": 4, "per_device_train_batch_size": 4}))
    ran = started(tmp_path, str(BIN / "trl"), "grpo", "--config", "recipe.yaml")
    assert ran.returncode == 2
    assert "BB-TRL-003" in ran.stderr
