"""What `batchbridge run` says before its command starts, and after it has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from batchbridge.contract.enforcement import Enforcement, Obstacle
from batchbridge.reading.read import read
from batchbridge.running.launch import Launch
from batchbridge.running.spoken import before

Run = Callable[..., subprocess.CompletedProcess[str]]

LEDGER = """
import runpy
from batchbridge.ledger import Header, Writer
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Spec, Topology
from batchbridge.running.launch import current_launch
runpy.run_path("train.py")
spec = Spec(topology=Topology(world_size=1), rollout=Rollout(prompts_per_rollout=2, completions_per_prompt=2),
            optimizer_step=OptimizerStep(completions_per_step=4), loss=Loss(policy=LossTerm(aggregation="token_mean")),
            horizon=Horizon(optimizer_steps=4))
ledger = current_launch().ledger
Writer(ledger, Header(framework="trl", framework_version="1.16.0", mode="enforce", spec=spec, dataset_size=8,
                      world_size=1, rank=0)).close()
"""


def ours(ran: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ran.stderr.splitlines() if line.startswith("batchbridge: ")]


def test_a_script_of_ones_own_is_said_to_be_read_later(run: Run) -> None:
    ran = run("--", sys.executable, "train.py")
    assert ours(ran) == [
        "batchbridge: mode enforce; what is trained is read from the trainer, once the command has built it",
        "batchbridge: no ledger is written (--ledger FOLDER)",
    ]


def test_what_was_read_is_said_before_the_command_starts() -> None:
    settings = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 7}
    own = read(settings, framework="trl", version="1.16.0", world_size=1, dataset_size=64)
    assert own.spec is not None
    launch = Launch(framework="trl", hooks={}, ledger="/runs/a")
    proven = Enforcement(evidence="proven")
    assert list(before(own, proven, launch)) == [
        "trl 1.16.0, mode enforce; its code: proven",
        f"an optimizer step trains 8 completions, weighed by {own.spec.loss.policy.aggregation}; 7 steps, as the "
        "command says",
        "ledger: /runs/a",
    ]
    hindered = Enforcement(obstacles=(Obstacle(name="fp16", reason="its scaler", remedy="use bf16"),))
    assert "`batchbridge check -v` says what stands in the way" in next(before(own, hindered, launch))
    asked = Launch(framework="trl", hooks={}, spec=own.spec.replace(**{"horizon.optimizer_steps": 3}).to_dict())
    assert "; 3 steps, as it was asked to" in list(before(own, proven, asked))[1]


def test_the_ledger_and_the_next_command_are_said_at_the_end(run: Run, tmp_path: Path) -> None:
    ran = run("--ledger", "kept", "--", sys.executable, "-c", LEDGER)
    assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "kept"
    assert f"batchbridge: ledger: {folder}" in ours(ran)
    end = f"batchbridge: 0 optimizer steps held against the plan, 0 skipped: `batchbridge ledger verify {folder}`"
    assert ours(ran)[-1] == end


def test_a_launcher_in_a_script_is_said(run: Run, tmp_path: Path) -> None:
    line = "docker run img python -m verl.trainer.main_ppo data.train_batch_size=8"
    (tmp_path / "job.sh").write_text(f"{line}\n")
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "docker").chmod(0o755)
    ran = run("--", "bash", "job.sh")
    assert ran.returncode == 4
    said = (
        "in front of job.sh does not reach what docker run starts in it; write there: docker run img batchbridge run --"
    )
    assert said in ran.stderr
