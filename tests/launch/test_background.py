"""A script that puts its training into the background and ends."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchbridge.cli.main import UNDECIDED
from batchbridge.running import outlived

Run = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = """
import os, sys, time
from batchbridge.running.launch import arrived, current_launch, has_started
open("pid", "w").write(str(os.getpid()))
time.sleep(float(sys.argv[1]))
launch = current_launch()
if launch is not None and has_started(launch.run):
    arrived(f"trainer-{os.getpid()}", launch.mode)
time.sleep(float(sys.argv[2]))
"""
"""A mock of a trainer's process: seconds until its trainer is there, and seconds that it trains."""
WAYS = ("nohup {0} > log 2>&1 &", "({0} > log 2>&1 &)", "setsid {0} > log 2>&1 &", "{0} > log 2>&1 & disown")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str, float, float], str]]:
    """Writes a script; what it has left is ended."""

    def write(way: str, before: float, trains: float) -> str:
        (tmp_path / "background.py").write_text(TRAIN)
        command = f"{sys.executable} background.py {before} {trains}"
        (tmp_path / "job.sh").write_text(f"{way.format(command)}\nwhile [ ! -s pid ]; do sleep 0.05; done\n")
        return "job.sh"

    yield write
    if (tmp_path / "pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are told by /proc alone")


@linux
@pytest.mark.parametrize("way", WAYS)
def test_a_training_in_the_background_is_waited_for_and_named(
    run: Run, script: Callable[[str, float, float], str], tmp_path: Path, way: str
) -> None:
    """The trainer comes seconds after the script has ended."""
    ran = run("--ledger", "kept", "--", "bash", script(way, 5, 60))
    pid = int((tmp_path / "pid").read_text())
    assert ran.returncode == 0, ran.stderr
    os.kill(pid, 0)  # it trains
    waiting, background, ledger = ran.stderr.splitlines()[-3:]
    assert f"exit code 0, and PID {pid} (" in waiting
    assert waiting.endswith("in the background: waiting for a trainer (Ctrl-C ends the waiting alone)")
    start = "batchbridge: the command has ended with exit code 0; the training goes on in the background as PID"
    assert background.startswith(f"{start} {pid} (")
    assert "background.py" in background
    folder = tmp_path / "kept"
    assert ledger == f"batchbridge: the ledger goes on in {folder}: `batchbridge ledger show {folder} --follow`"


@linux
def test_a_training_that_ends_while_it_is_waited_for_is_told_as_any_other(
    run: Run, script: Callable[[str, float, float], str]
) -> None:
    ran = run("--", "bash", script(WAYS[0], 0, 1))
    assert ran.returncode == 0, ran.stderr
    assert "in the background" not in ran.stderr


@linux
@pytest.mark.parametrize("seconds", ["1", "30"])
def test_what_goes_on_without_a_trainer_is_named_and_told_as_native(run: Run, tmp_path: Path, seconds: str) -> None:
    """It is waited for until it ends, or until --expect-within."""
    (tmp_path / "job.sh").write_text("nohup sleep 6 > log 2>&1 &\n")
    begun = time.monotonic()
    ran = run("--expect-within", seconds, "--", "bash", "job.sh")
    assert ran.returncode == UNDECIDED
    assert time.monotonic() - begun < 20
    assert "(sleep 6) goes on in the background: waiting for a trainer" in ran.stderr
    assert ("after 1 s (--expect-within) they still go on; no longer waited for" in ran.stderr) is (seconds == "1")
    assert "ended with exit code 0 without a trainer that could be reached" in ran.stderr


@linux
def test_ctrl_c_ends_the_waiting_and_not_what_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("nohup sleep 60 > log 2>&1 &\necho $! > pid\n")
    words = [sys.executable, "-m", "batchbridge", "run", "--", "bash", "job.sh"]
    # Whoever runs these tests in the background ignores Ctrl-C, and so would this process.
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    ran = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    assert ran.stderr is not None
    said = ""
    while "waiting for a trainer" not in said:
        said = ran.stderr.readline()
    ran.send_signal(signal.SIGINT)
    assert ran.wait(timeout=30) == 128 + signal.SIGINT
    assert "what goes on in the background was not ended" in ran.stderr.read()
    ran.stderr.close()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # which finds it


@linux
@pytest.mark.parametrize("way", WAYS)
def test_a_dry_run_waits_for_it_and_ends_it(tmp_path: Path, way: str) -> None:
    body = (
        "import os, time\nfrom batchbridge.running.launch import arrived\nopen('pid', 'w').write(str(os.getpid()))\n"
        """time.sleep(1)\narrived('judged-1', '{"text": "said", "code": 0}')\ntime.sleep(600)\n"""
    )
    (tmp_path / "background.py").write_text(body)
    (tmp_path / "job.sh").write_text(way.format(f"{sys.executable} background.py") + "\n")
    words = [sys.executable, "-m", "batchbridge", "run", "--dry", "--framework", "trl", "--", "bash", "job.sh"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "said\n"), ran.stderr
    left = Path("/proc", (tmp_path / "pid").read_text(), "cmdline")
    assert not left.exists() or not left.read_bytes(), "a process that has ended has no words"


def test_a_process_that_is_just_being_replaced_by_a_program_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock of /proc: it shows no environment and no words while the kernel puts the program in place."""
    replaced, of_the_kernel = tmp_path / "7", tmp_path / "8"
    for folder in (replaced, of_the_kernel):
        folder.mkdir()
        (folder / "environ").touch()
        (folder / "cmdline").touch()
    (replaced / "exe").symlink_to(sys.executable)

    def in_place() -> None:
        (replaced / "environ").write_bytes(b"BATCHBRIDGE_RUN=ours\0")
        (replaced / "cmdline").write_bytes(b"python\0train.py\0")

    monkeypatch.setattr(outlived, "_PROCESSES", tmp_path)
    timer = threading.Timer(0.2, in_place)
    timer.start()
    found = outlived.outliving("ours")
    timer.join()
    assert [str(one) for one in found] == ["PID 7 (python train.py)"]
