"""Launchers that drop the environment: `run` puts the launch behind them or starts nothing, `check` says so.

srun, sudo, ssh and docker are programs of these tests that do to the environment what the real ones do.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bashread import Argument
from batchbridge.cli.main import UNDECIDED, USAGE
from batchbridge.reading import read
from batchbridge.reading.launchers import LaunchedProgram, programs

Run = Callable[..., subprocess.CompletedProcess[str]]

SRUN = """#!{python}
import os, sys
words, kept = sys.argv[1:], dict(os.environ)
while words and words[0].startswith("-"):
    word = words.pop(0)
    if word.startswith("--export=") and "ALL" not in word:
        names = [] if word == "--export=NONE" else word.partition("=")[2].split(",")
        kept = {{name: os.environ[name] for name in ("PATH", *names) if name in os.environ}}
os.execvpe(words[0], words, kept)
"""
SUDO = """#!{python}
import os, sys
words = sys.argv[1:]
kept = {{"PATH": os.environ["PATH"]}}
if words and words[0] == "-E":
    kept = {{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}}
    words = words[1:]
while "=" in words[0]:
    name, _, kept[name] = words.pop(0).partition("=")
os.execvpe(words[0], words, kept)
"""
STARTED = "#!/bin/sh\ntouch {folder}/started\n"
STAND_INS = {"srun": SRUN, "sudo": SUDO, "ssh": STARTED, "docker": STARTED, "sbatch": STARTED, "kubectl": STARTED}


def put(folder: Path, name: str) -> None:
    program = folder / "bin" / name
    program.write_text(STAND_INS[name].format(python=sys.executable, folder=folder))
    program.chmod(0o755)


def only(line: str) -> LaunchedProgram:
    (program,) = programs([Argument(word, 1) for word in shlex.split(line)])
    return program


@pytest.mark.parametrize(
    "before",
    [
        ["env", "-i"],
        ["env", "-i", "A=1"],
        ["env", "-u", "BATCHBRIDGE_RUN", "-u", "PYTHONPATH"],
        ["timeout", "60", "env", "-"],
        ["srun", "-n1", "--export=NONE"],
        ["srun", "--export=A,PATH"],
        ["sudo"],
        ["sudo", "-E"],
        ["sudo", "A=1"],
        ["nohup", "srun", "--export=NONE", "env", "-i"],
    ],
)
def test_the_launch_arrives_as_words(run: Run, sources: str, tmp_path: Path, before: list[str]) -> None:
    put(tmp_path, "srun")
    put(tmp_path, "sudo")
    path = [] if not sources else ["env", f"PYTHONPATH={sources}"]
    ran = run("--", *before, *path, sys.executable, "train.py", A="1")
    assert ran.returncode == 0, ran.stderr
    assert "BATCHBRIDGE_RUN=... PYTHONPATH=..." in ran.stderr
    if "A=1" in before or "-E" in before or "--export=A,PATH" in before:
        assert "A 1" in ran.stdout


@pytest.mark.parametrize("before", [["env", "A=1"], ["srun", "-n1"], ["srun", "--export=ALL,A=1"], ["nohup"]])
def test_a_launcher_that_hands_everything_on_is_left_as_it_is(run: Run, tmp_path: Path, before: list[str]) -> None:
    put(tmp_path, "srun")
    ran = run("--", *before, sys.executable, "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "BATCHBRIDGE_RUN=" not in ran.stderr


def test_a_pythonpath_among_the_words_keeps_its_folders(run: Run, sources: str, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(tmp_path), sources]))
    ran = run("--", "env", f"PYTHONPATH={path}", sys.executable, "train.py")
    assert ran.returncode == 0, ran.stderr
    shown = ran.stdout.split("PATH ")[1].strip().split(os.pathsep)
    assert shown[0].endswith("_site")
    assert os.pathsep.join(shown[1:]) == path


REFUSED = [
    ("ssh -p 22 node python train.py", "ssh -p 22 node batchbridge run -- python train.py"),
    (
        "ssh node 'cd /x && python train.py'",
        "ssh node \"batchbridge run -- bash -c 'cd /x && python train.py'\"",
    ),
    (
        "docker run --rm -it -v /a:/b --gpus all img python train.py",
        "--gpus all img batchbridge run -- python train.py",
    ),
    ("docker exec box bash -c 'python train.py'", "docker exec box batchbridge run -- bash -c 'python train.py'"),
    (
        "docker --context far run img python train.py",
        "in the container, before the program: batchbridge run -- COMMAND",
    ),
    ("podman run img env -i python train.py", "podman run img env -i batchbridge run -- python train.py"),
    ("kubectl exec -it pod -c main -- python train.py", "pod -c main -- batchbridge run -- python train.py"),
    ("kubectl -n mine exec pod -- python train.py", "exec pod -- batchbridge run -- python train.py"),
    ("apptainer exec --nv img.sif python train.py", "apptainer exec --nv img.sif batchbridge run -- python train.py"),
    ("sbatch job.sh", "in the job's script, before the command that trains: batchbridge run -- COMMAND"),
    ("sbatch -N1 --wrap 'python train.py'", 'sbatch -N1 --wrap "batchbridge run -- python train.py"'),
    ("srun --container-image=x python train.py", "srun --container-image=x batchbridge run -- python train.py"),
    ("python -I train.py", "batchbridge run -- python train.py"),
    ("nohup python -B -E train.py", "nohup batchbridge run -- python -B train.py"),
    ("bash -c 'sudo python train.py'", "sudo batchbridge run -- python train.py"),
    ("su - me -c 'python train.py'", 'su - me --command "batchbridge run -- python train.py"'),
    ("ray exec up.yaml 'python train.py'", 'ray exec up.yaml "batchbridge run -- python train.py"'),
    ("deepspeed --hostfile hosts train.py", "before `torchrun`, started on every node: batchbridge run -- COMMAND"),
    ("python mason.py --x 1 -- python train.py", "python mason.py --x 1 -- batchbridge run -- python train.py"),
]


@pytest.mark.parametrize(("line", "instead"), REFUSED)
def test_what_cannot_be_reached_names_the_command_to_write(line: str, instead: str) -> None:
    stop = only(line).stop
    assert stop is not None
    assert stop.place is None
    assert stop.instead.endswith(instead)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("tmux new-session -d -s x 'python t.py a=1'", 'tmux new-session -d -s x "batchbridge run -- python t.py a=1"'),
        ("tmux new -s x python t.py", "tmux new -s x batchbridge run -- python t.py"),
        ("tmux send-keys -t x 'python t.py' Enter", "in the keys, before the program: batchbridge run -- COMMAND"),
        ("screen -dmS x python t.py", "in the session, before the program: batchbridge run -- COMMAND"),
        ("screen -S x -X stuff 'python t.py'", "in the session, before the program: batchbridge run -- COMMAND"),
        ("mpirun -np 8 -H a:4,b:4 --mca btl ^openib python t.py", "--mca btl ^openib batchbridge run -- python t.py"),
        ("mpiexec -n 2 --hostfile h python t.py", "mpiexec -n 2 --hostfile h batchbridge run -- python t.py"),
    ],
)
def test_sessions_and_other_hosts_name_where_run_stands(run: Run, tmp_path: Path, line: str, instead: str) -> None:
    stop = only(line).stop
    assert stop is not None
    assert stop.instead.endswith(instead)
    program = tmp_path / "bin" / line.split()[0]
    program.write_text(STARTED.format(folder=tmp_path))
    program.chmod(0o755)
    ran = run("--", *shlex.split(line))
    assert ran.returncode == USAGE
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("line", ["screen python t.py", "mpirun -np 8 python t.py", "nohup setsid python t.py"])
def test_what_hands_the_environment_on_is_left_alone(line: str) -> None:
    assert only(line).stop is None
    assert only(line).argv == ("python", "t.py")


@pytest.mark.parametrize(
    ("before", "lost"),
    [
        ("export PYTHONPATH=/mine", "PYTHONPATH=/mine:$PYTHONPATH"),
        ("PYTHONPATH=$(pwd)", "PYTHONPATH=.:$PYTHONPATH"),
        ("PYTHONPATH=/mine \\", "PYTHONPATH=/mine:$PYTHONPATH"),
        ("export PYTHONPATH=/mine:$PYTHONPATH", None),
        ("export PYTHONPATH=/mine:${PYTHONPATH:-}", None),
        ("OTHER=/mine:$PYTHONPATH; export PYTHONPATH=$OTHER", None),
        ("(export PYTHONPATH=/mine; python prepare.py)", None),
        ("PYTHONPATH=/mine python prepare.py", None),
        ("export PYTHONPATH=/mine\nray job submit --address http://a:1 -- \\", None),
    ],
)
def test_a_script_that_replaces_pythonpath_is_said(run: Run, tmp_path: Path, before: str, lost: str | None) -> None:
    line = "python -m verl.trainer.main_ppo data.train_batch_size=8"
    (tmp_path / "job.sh").write_text(f"{before}\n{line}\n")
    unreached = read.read(tmp_path / "job.sh").unreached
    assert (None if unreached is None else unreached.instead) == lost
    if lost is not None:
        (tmp_path / "bin" / "python").write_text("#!/bin/sh\n")
        (tmp_path / "bin" / "python").chmod(0o755)
        ran = run("--", "bash", "job.sh")
        assert "and leaves out what it was: `batchbridge run` in front of job.sh does not reach" in ran.stderr
        assert f"write there: {lost}" in ran.stderr


@pytest.mark.parametrize("name", ["ssh", "docker", "sbatch", "kubectl"])
def test_nothing_is_started_in_front_of_a_launcher_that_drops_the_launch(run: Run, tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    lines = {"ssh": "ssh node", "docker": "docker run img", "sbatch": "sbatch", "kubectl": "kubectl exec pod --"}
    ran = run("--", *shlex.split(lines[name]), "python", "train.py")
    assert ran.returncode == USAGE
    assert f"`batchbridge run` in front of {name}" in ran.stderr
    assert "write: " in ran.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-BI"])
def test_a_python_that_would_not_be_reached_is_not_started(run: Run, flag: str) -> None:
    ran = run("--", sys.executable, flag, "-c", "raise SystemExit(9)")
    assert ran.returncode == USAGE
    assert f"{flag}` does not read PYTHONPATH" in ran.stderr


NATIVE = "import subprocess, sys; subprocess.run(['env', '-i', sys.executable, '-c', 'pass']); sys.exit(%d)"


@pytest.mark.parametrize(("ended", "code"), [(9, 9), (0, UNDECIDED)])
def test_a_native_run_is_named_whatever_its_exit_code(run: Run, ended: int, code: int) -> None:
    ran = run("--", sys.executable, "-c", NATIVE % ended)
    assert ran.returncode == code
    assert f"ended with exit code {ended} without a trainer that could be reached" in ran.stderr


@pytest.mark.parametrize(("seconds", "said"), [("1", True), ("0", False)])
def test_a_trainer_that_does_not_come_is_said_while_the_command_runs(run: Run, seconds: str, said: bool) -> None:
    body = "import sys, time; time.sleep(2); print('LATER', file=sys.stderr, flush=True)"
    ran = run("--expect-within", seconds, "--", sys.executable, "-c", body)
    words = "no trainer has been reached after 1 s (--expect-within)"
    assert (words in ran.stderr.partition("LATER")[0]) is said


def test_a_trainer_that_came_is_not_asked_for(run: Run) -> None:
    ran = run(
        "--expect-within",
        "2",
        "--",
        sys.executable,
        "-c",
        "import runpy, time\nrunpy.run_path('train.py')\ntime.sleep(3)",
    )
    assert ran.returncode == 0, ran.stderr
    assert "no trainer" not in ran.stderr
