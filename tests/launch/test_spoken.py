"""What `batchbridge run` says before its command starts, and after it has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli.run import diagnosed
from batchbridge.contract.enforcement import Enforcement, Obstacle
from batchbridge.reading.read import read
from batchbridge.running.launch import Launch
from batchbridge.running.spoken import before
from batchbridge.running.telling import LOG, tell

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
        "an optimizer step trains 8 completions; a response token weighs 1 / T (T: response tokens); 7 steps, as the "
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


PARTS = """
import os, sys
sys.path.insert(0, TESTS)
from scripted_ledger import header, record, rows_of
from batchbridge.ledger import Writer
from batchbridge.running.launch import arrived, current_launch
arrived("trainer-1", "wrapped")
with Writer(current_launch().ledger, header(framework="verl", framework_version="0.9.1")) as writer:
    for step in range(STEPS):
        writer.append(record(step, rows_of(step)))
"""
UNEVEN = "only support equal chunk. Got size of DataProto 500 and chunk 96"


def dying(steps: int, end: str) -> str:
    """A program that records so many of four steps and ends so."""
    folder = Path(__file__).parents[1] / "ledger"
    return PARTS.replace("TESTS", repr(str(folder))).replace("STEPS", str(steps)) + end


def test_a_run_that_dies_says_how_far_its_ledger_goes_and_how_to_go_on(run: Run, tmp_path: Path) -> None:
    ran = run("--ledger", "kept", "--", sys.executable, "-c", dying(3, "os.kill(os.getpid(), 9)"))
    assert ran.returncode == 137
    assert ours(ran)[-3:] == [
        f"batchbridge: 3 optimizer steps held against the plan, 0 skipped: `batchbridge ledger verify "
        f"{tmp_path / 'kept'}`",
        "batchbridge: the command ended with exit code 137; the ledger goes to optimizer step 2 of 4, counted from 0",
        "batchbridge: to go on, from the newest checkpoint and in the same ledger: the same command, with "
        "trainer.resume_mode=auto and a trainer.save_freq above 0 since its start (docs/resume.md)",
    ]


def test_a_run_whose_observing_has_ended_says_so_at_its_end(run: Run) -> None:
    ended = dying(2, "    writer.end('KeyError: a field')")
    ran = run("--mode", "observe", "--ledger", "kept", "--", sys.executable, "-c", ended)
    said = "batchbridge: incomplete: nothing was observed from optimizer step 2 on, the run went on: KeyError: a field"
    assert said in ours(ran)


def test_a_run_that_fails_after_its_last_step_has_nothing_to_go_on_with(run: Run) -> None:
    ran = run("--ledger", "kept", "--", sys.executable, "-c", dying(4, "sys.exit(5)"))
    assert ran.returncode == 5
    assert "to go on" not in ran.stderr
    assert ours(ran)[-1].startswith("batchbridge: 4 optimizer steps held against the plan")


EXITS = """
try:
    raise AssertionError(text)
except Exception:
    traceback.print_exc()
    sys.exit(1)
"""


@pytest.mark.parametrize("end", ["raise AssertionError(text)", EXITS], ids=["uncaught", "printed, as Hydra does"])
@pytest.mark.parametrize("child", [False, True])
def test_a_known_text_that_the_command_dies_of_is_explained(run: Run, tmp_path: Path, end: str, child: bool) -> None:
    (tmp_path / "dies.py").write_text(f"import sys, traceback\ntext = {UNEVEN!r}\n{end}")
    starts = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'dies.py']))"
    words = [sys.executable, *(["-c", starts] if child else ["dies.py"])]
    ran = run("--", *words)
    assert ran.returncode == 1
    assert ran.stderr.count(UNEVEN) >= 2, "the program's own words, and doctor's"
    assert "batchbridge: the command died of a text that is known; `batchbridge doctor` says of it:" in ours(ran)
    assert any("500" in line and "96" in line for line in ours(ran))


def test_the_configuration_at_hand_is_held_against_a_known_text() -> None:
    settings = {"data.train_batch_size": 100, "actor_rollout_ref.rollout.n": 5, "trainer.n_gpus_per_node": 8}
    own = read({**settings, "trainer.nnodes": 1}, framework="verl", version="0.9.1", dataset_size=100)
    said = list(diagnosed(f"AssertionError: {UNEVEN}", own))
    assert any("the command, as verl 0.9.1" in line for line in said), said
    assert not any("--with n=NUMBER" in line for line in said), "its n is known"
    assert not any("easyr1" in line.partition("(")[0] for line in said[1:]), "another framework's rule quotes it, too"


@pytest.mark.parametrize("end", ["raise ValueError('of my own')", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_an_unknown_end_is_not_explained(run: Run, end: str) -> None:
    ran = run("--", sys.executable, "-c", f"import sys; {end}")
    assert ran.returncode != 0
    assert "doctor" not in ran.stderr


def test_what_was_said_stands_beside_the_ledger(run: Run, tmp_path: Path) -> None:
    end = f"raise AssertionError({UNEVEN!r})"
    ran = run("--ledger", "kept", "--", sys.executable, "-c", dying(1, end))
    kept = (tmp_path / "kept" / LOG).read_text()
    for line in ours(ran):
        assert line.removeprefix("batchbridge: ") in kept
    assert "AssertionError: only support equal chunk" in kept
    assert kept.index("mode enforce") < kept.index("the ledger goes to optimizer step 0")


def test_every_line_is_found_by_its_first_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tell("one\n  two", tmp_path, logged="one\n  two\n  three")
    assert capsys.readouterr().err == "batchbridge: one\nbatchbridge:   two\n"
    assert [line.split(" ", 2)[2] for line in (tmp_path / LOG).read_text().splitlines()] == ["one", "  two", "  three"]


def test_what_waits_for_a_folder_is_not_written_to_another_one(tmp_path: Path) -> None:
    tell("of a run that never began", tmp_path / "never")
    tell("of this one", tmp_path)
    assert "never began" not in (tmp_path / LOG).read_text()


def test_what_is_said_before_there_is_a_folder_is_written_once_it_is_there(tmp_path: Path) -> None:
    tell("early", tmp_path / "later")
    assert not (tmp_path / "later").exists()
    (tmp_path / "later").mkdir()
    tell("late", tmp_path / "later")
    assert [line.split(" ", 2)[2] for line in (tmp_path / "later" / LOG).read_text().splitlines()] == ["early", "late"]
