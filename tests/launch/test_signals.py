"""Signals of `batchbridge run`: the command has each once, whoever had it first."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SAVES = """
import signal, sys, time
def stop(number, frame):
    raise KeyboardInterrupt
if sys.argv[1] == "TERM":
    signal.signal(signal.SIGTERM, stop)
try:
    print("READY", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("saving", flush=True)
    time.sleep(1.5)
    open("checkpoint", "w").write("whole")
    sys.exit(3)
"""


def command(folder: Path, name: str) -> list[str]:
    (folder / "saves.py").write_text(SAVES)
    return [sys.executable, "-m", "batchbridge", "run", "--", sys.executable, "saves.py", name]


def _default() -> None:
    """A shell's child has the default handlers, whatever started this test."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def read_until(file: int, word: bytes, seconds: float = 60) -> bytes:
    """What is read until a word comes, or the end."""
    text, until = b"", time.monotonic() + seconds
    while word not in text and time.monotonic() < until:
        if select.select([file], [], [], 0.5)[0]:
            try:
                part = os.read(file, 4096)
            except OSError:  # a terminal whose processes are gone
                break
            if not part:
                break
            text += part
    return text


def test_ctrl_c_of_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    words = command(tmp_path, "INT")
    pid, terminal = pty.fork()
    if pid == 0:  # the terminal's session
        os.chdir(tmp_path)
        _default()
        os.execv(words[0], words)
    assert b"READY" in read_until(terminal, b"READY")
    os.write(terminal, b"\x03")
    said = read_until(terminal, b"\0never")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert (tmp_path / "checkpoint").exists(), said.decode()
    assert os.waitstatus_to_exitcode(status) == 3
    assert said.count(b"saving") == 1
    assert b"Traceback" not in said


def to_group(process: subprocess.Popen[bytes], number: int) -> None:
    os.killpg(process.pid, number)


def to_us_alone(process: subprocess.Popen[bytes], number: int) -> None:
    os.kill(process.pid, number)


@pytest.mark.parametrize("send", [to_group, to_us_alone])
@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_reaches_the_command_once(
    tmp_path: Path, send: Callable[[subprocess.Popen[bytes], int], None], name: str
) -> None:
    process = subprocess.Popen(
        command(tmp_path, name),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_default,
    )
    assert process.stdout is not None
    assert b"READY" in read_until(process.stdout.fileno(), b"READY")
    send(process, getattr(signal, f"SIG{name}"))
    said = process.stdout.read()
    assert process.wait() == 3, said.decode()
    process.stdout.close()
    assert (tmp_path / "checkpoint").exists()
    assert said.count(b"saving") == 1


def test_two_signals_are_two(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "INT"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_default,
    )
    assert process.stdout is not None
    read_until(process.stdout.fileno(), b"READY")
    os.kill(process.pid, signal.SIGINT)
    read_until(process.stdout.fileno(), b"saving")
    os.kill(process.pid, signal.SIGINT)
    said = process.stdout.read()
    assert process.wait() == 130, said.decode()
    process.stdout.close()
    assert not (tmp_path / "checkpoint").exists()
