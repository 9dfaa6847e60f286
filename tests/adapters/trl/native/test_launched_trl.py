"""`batchbridge run` starts TRL in the ways that people start it; each is a process tree of its own, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read
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


def test_what_the_page_shows_is_what_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """`docs/make_outputs.py` writes it, where TRL is installed."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_outputs

    page = ROOT / "docs" / "launch.md"
    (block,) = [one for one in make_outputs.blocks(page) if one.said.startswith("with: trl ")]
    ((command, shown, said),) = make_outputs.Reader(ROOT).does(block)
    assert command == "batchbridge run --ledger runs/a -- python train.py"
    assert make_outputs.fits(shown, said), said
    assert len([line for line in shown.splitlines() if line.startswith("batchbridge: ")]) >= 6


def test_every_patch_is_beside_the_ledger_and_not_on_the_terminal(tmp_path: Path) -> None:
    ran = started(tmp_path, sys.executable, SCRIPT, str(tmp_path), "--my_flag", "3", options=("--ledger", "runs/a"))
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


def test_a_rank_that_is_killed_leaves_a_ledger_that_says_how_far_and_a_run_that_goes_on(tmp_path: Path) -> None:
    """SIGKILL of one of torchrun's ranks, in the middle of the run; then the way that was said."""
    words = (*COMMANDS["torchrun"], str(tmp_path))
    ran = started(tmp_path, *words, "--killed", options=("--ledger", "ledger"))
    assert ran.returncode == 1
    lines = [line for line in ran.stderr.splitlines() if line.startswith("batchbridge: ")]
    seen = Ledger(tmp_path / "ledger")
    total = Plan(Spec.from_dict(seen.headers[0]["spec"]), seen.headers[0]["dataset_size"]).total_optimizer_steps
    assert 2 <= seen.stop_step <= 3 < total
    held, far, way = lines[-3:]
    assert held.startswith(
        f"batchbridge: {seen.stop_step} optimizer steps held against the plan, of 2 ranks, 0 skipped"
    )
    reaches = f"the ledger goes to optimizer step {seen.stop_step - 1} of {total}, counted from 0"
    assert far == f"batchbridge: the command ended with exit code 1; {reaches}"
    assert way.startswith("batchbridge: to go on, from the newest checkpoint and in the same ledger: `trainer.train(")
    assert "batchbridge: the command died of a text that is known; `batchbridge doctor` says of it:" in lines
    assert any(line.startswith("batchbridge: killed-rank  torch ") for line in lines)
    assert any("lack of host memory" in line for line in lines)

    again = started(tmp_path, *words, "--resume", options=("--ledger", "ledger"))
    assert again.returncode == 0, again.stderr[-4000:]
    assert [step["step"] for step in read_steps(tmp_path / "ledger")] == list(range(total))


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


def dry(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`batchbridge run --dry`, with W&B asked for, which would leave a run of its own."""
    before = {name: os.environ.get(name) for name in ("WANDB_DIR", "WANDB_MODE")}
    os.environ |= {"WANDB_DIR": str(folder), "WANDB_MODE": "offline"}
    try:
        return started(folder, *words, options=("--dry",))
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.mark.parametrize("how", ["python", "torchrun"])
def test_a_dry_run_takes_no_step_and_judges_the_trainer_that_was_built(tmp_path: Path, how: str) -> None:
    """With --wrapped, the script's own wrapping opens a ledger: its first step would be in it."""
    ran = dry(tmp_path, *COMMANDS[how], str(tmp_path), "--wrapped")
    assert ran.returncode == 0, ran.stderr[-4000:]
    devices = "1 device" if RANKS[how] == 1 else f"{RANKS[how]} devices"
    assert f"the GRPOTrainer that the command built  trl {version('trl')}  {devices}  VALID" in ran.stdout
    assert ran.stdout.count("that the command built") == 1, "ranks say the same once"
    assert f"An optimizer step trains on {4 * RANKS[how]} completions" in ran.stdout
    assert not list((tmp_path / "by_hand").glob("rank-*")), "which its first step would have written"
    left = [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if "by_hand" not in str(file)]
    assert left == ["out"], "no checkpoint and no tracker's run"


def test_a_dry_run_on_a_cpu_says_why_no_pass_is_measured(tmp_path: Path) -> None:
    ran = started(tmp_path, *COMMANDS["python"], str(tmp_path), options=("--dry", "--memory"))
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "VALID" in ran.stdout
    assert "the memory of passes is not known: a CPU's memory is everybody's" in ran.stdout


@pytest.mark.parametrize("how", ["python", "torchrun"])
def test_a_dry_run_measures_passes_in_the_processes_that_built_the_trainer(tmp_path: Path, how: str) -> None:
    """With a stand-in for the device's memory: the trainer comes to its own `train` again, which follows no launch."""
    ran = started(tmp_path, *COMMANDS[how], str(tmp_path), "--limited-memory", options=("--dry", "--memory"))
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "VALID" in ran.stdout
    assert "held against a pass over" in ran.stdout
    assert ran.stdout.count("weights, gradients, optimizer state") == 1


def test_a_dry_run_of_a_script_without_a_trainer_is_not_judged(tmp_path: Path) -> None:
    ran = dry(tmp_path, *COMMANDS["python"], str(tmp_path), "--none")
    assert ran.returncode == 4
    assert "without a trainer that was about to train: not judged" in ran.stderr


def test_a_dry_run_says_of_a_copy_that_it_is_one(tmp_path: Path) -> None:
    ran = dry(tmp_path, *COMMANDS["python"], str(tmp_path), "--copy")
    assert ran.returncode == 4
    assert "the Qwen2VLGRPOTrainer that the command built: UNDECIDED" in ran.stdout


def test_a_dry_run_judges_what_only_running_decides_in_a_notebook(tmp_path: Path) -> None:
    """A notebook as nbconvert writes it, whose sizes come from a function of the machine."""
    cells = [
        "# coding: utf-8\n# In[1]:\n",
        "import os, sys\nos.environ['ACCELERATE_USE_CPU'] = 'true'\n",
        "from pathlib import Path\nfrom batchbridge_trl.testing import scripted_trainer\n",
        "# In[2]:\ncores = len(os.sched_getaffinity(0))\nsizes = {'per_device_train_batch_size': 3 * cores // cores}\n",
        "trainer = scripted_trainer(Path('out'), num_train_epochs=1, gradient_accumulation_steps=4, **sizes)\n",
        "trainer.train()\nPath('trained').touch()\n",
    ]
    (tmp_path / "notebook.py").write_text("\n".join(cells))
    ran = dry(tmp_path, sys.executable, "notebook.py")
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "An optimizer step trains on 12 completions" in ran.stdout
    assert not (tmp_path / "trained").exists()


def test_trackers_and_checkpoints_of_a_real_run_are_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's one file of an offline run, trackio's data base and the checkpoint of one run mean the same."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom batchbridge_trl.testing import scripted_trainer\n"
        "from batchbridge_on_cpu.leaving import leave\n"
        "sizes = {'per_device_train_batch_size': 2, 'gradient_accumulation_steps': 2, 'num_train_epochs': 1}\n"
        "kept = {'report_to': ['wandb'], 'save_strategy': 'steps', 'save_steps': 2, 'max_steps': 2}\n"
        "trainer = scripted_trainer(Path('out'), **sizes, **kept)\ntrainer.train()\nimport wandb\nwandb.finish()\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "SQLiteStorage.bulk_log('past', 'first', [{'loss': 0.0}], config=trainer.args.to_dict())\nleave()\n"
    )
    (tmp_path / "train.py").write_text(script)
    for name, value in {
        "WANDB_DIR": str(tmp_path),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "t"),
    }.items():
        monkeypatch.setenv(name, value)
    own = {**os.environ, "ACCELERATE_USE_CPU": "true", "TRL_EXPERIMENTAL_SILENCE": "1"}
    ran = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    (project,) = (tmp_path / "t").glob("*.db")
    readings = [read(tmp_path / "out"), read(offline), read(project, framework="trl")]
    specs = [read(file, framework="trl", version=version("trl")).spec for file in (tmp_path / "out", offline, project)]
    assert specs[0] is not None
    assert specs[0].optimizer_step.completions_per_step == 4
    assert specs[1] == specs[0]
    assert specs[2] == specs[0]
    # TRL writes a model card into each checkpoint; trackio keeps no list of what was installed.
    assert [one.framework_version for one in readings] == [version("trl"), version("trl"), None]
