"""`batchbridge run --dry`: the command runs until it would train, and its trainer is judged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchbridge.cli.main import INVALID, UNDECIDED, USAGE

MOCK = """\
import sys, types
from batchbridge.running.follow import follow

class GRPOConfig:  # a mock of TRL's: what the adapter reads of an object, and nothing else
    world_size = 1
    def __init__(self, **settings):
        vars(self).update(settings)

class GRPOTrainer:
    train_dataset = list(range(64))
    accelerator = types.SimpleNamespace(num_processes=1)
    def train(self):
        follow(self)
        open("trained", "w").close()

GRPOConfig.__module__ = GRPOTrainer.__module__ = "trl.trainer.mock"
trainer = GRPOTrainer()
trainer.args = GRPOConfig(per_device_train_batch_size=int(sys.argv[1]), gradient_accumulation_steps=1,
                          num_generations=4, max_steps=1)
try:
    trainer.train()
except Exception:
    print("an error of the user's own is no end")
open("left", "w").close()
"""
"""A command that builds a trainer; the micro-batch is its argument."""


def dry(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`batchbridge run --dry WORDS` in `folder`, where TRL 1.16.0 looks installed."""
    (folder / "site" / "trl-1.16.0.dist-info").mkdir(parents=True)
    (folder / "site" / "trl-1.16.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: trl\nVersion: 1.16.0\n"
    )
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "batchbridge", "run", "--dry", *words]
    own = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("micro", "verdict", "code"), [("8", "VALID", 0), ("6", "INVALID", INVALID)])
def test_a_dry_run_ends_before_it_trains_with_the_verdict_on_the_trainer(
    tmp_path: Path, micro: str, verdict: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(MOCK)
    ran = dry(tmp_path, "--framework", "trl", "--", sys.executable, "train.py", micro)
    assert ran.returncode == code, ran.stdout + ran.stderr
    (first, *_) = ran.stdout.splitlines()
    assert first.startswith("the GRPOTrainer that the command built  trl 1.16.0  ")
    assert f"  {verdict}" in first
    assert ("An optimizer step trains on 8 completions" in ran.stdout) == (code == 0)
    assert not (tmp_path / "trained").exists()
    assert not (tmp_path / "left").exists(), "the process ends there"


def test_a_dry_run_without_a_trainer_is_not_judged(tmp_path: Path) -> None:
    ran = dry(tmp_path, "--framework", "trl", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert (ran.returncode, ran.stdout) == (UNDECIDED, "")
    assert "ended with exit code 3 without a trainer of trl that was about to train: not judged" in ran.stderr


@pytest.mark.parametrize("option", ["--ledger=x", "--allow=x", "--tokens-per-device=8", "--report-to=trainer"])
def test_what_is_about_training_does_not_go_with_a_dry_run(tmp_path: Path, option: str) -> None:
    ran = dry(tmp_path, option, "--framework", "trl", "--", sys.executable, "-c", "pass")
    assert ran.returncode == USAGE
    assert f"{option.partition('=')[0]} is about training" in ran.stderr


def test_memory_is_measured_where_nothing_is_trained_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "batchbridge", "run", "--memory", "--framework", "trl", "--", "true"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == USAGE
    assert "give --dry, too" in ran.stderr


def test_the_judgement_is_said_where_measuring_fails(tmp_path: Path) -> None:
    """The mock has nothing that could be trained, and the core's environment no torch."""
    (tmp_path / "train.py").write_text(MOCK)
    ran = dry(tmp_path, "--memory", "--framework", "trl", "--", sys.executable, "train.py", "8")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (first, *others) = ran.stdout.splitlines()
    assert "  VALID" in first
    assert others[-1].startswith("the memory of passes is not known: ")
    assert "Error: " in others[-1]


def test_a_framework_whose_passes_are_not_measured_says_so_before_it_starts(tmp_path: Path) -> None:
    ran = dry(tmp_path, "--memory", "--framework", "openrlhf", "--", sys.executable, "-c", "open('ran', 'w')")
    assert ran.returncode == USAGE
    assert "the adapter of openrlhf does not measure passes (run --dry --memory): leave --memory out" in ran.stderr
    assert not (tmp_path / "ran").exists()


def test_a_dry_run_leaves_no_process_behind(tmp_path: Path) -> None:
    """A command whose workers stay: all of its session is ended."""
    stays = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    body = (
        "import subprocess, sys, time, pathlib\n"
        f"subprocess.Popen([sys.executable, '-c', {stays!r}])\n"
        "while not pathlib.Path('pid').exists() or not pathlib.Path('pid').read_text(): time.sleep(0.05)\n"
        "from batchbridge.running.launch import arrived\n"
        """arrived('judged-1', '{"text": "said", "code": 0}')\n"""
    )
    ran = dry(tmp_path, "--framework", "trl", "--", sys.executable, "-c", body)
    assert (ran.returncode, ran.stdout) == (0, "said\n")
    assert _is_gone(int((tmp_path / "pid").read_text()))


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
