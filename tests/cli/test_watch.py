"""`check --watch`: again whenever a file changes, until Ctrl-C."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchbridge.cli import _watch
from batchbridge.cli.main import main

PATIENCE = 60
"""Seconds after which a line that does not come is a failure; it comes in one."""


@contextmanager
def watching(path: Path) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str]]]:
    line = [sys.executable, "-u", "-m", "batchbridge", "check", str(path), "--world-size", "2", "--watch"]
    line += ["--framework", "trl", "--framework-version", "1.16.0"]
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        # A shell's job in the background ignores Ctrl-C, and so does whatever it starts: these tests, perhaps.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    said: queue.Queue[str] = queue.Queue()

    def lines() -> None:
        assert process.stdout is not None
        for each in process.stdout:
            said.put(each)

    reader = threading.Thread(target=lines, daemon=True)
    reader.start()
    try:
        yield process, said
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def until(said: queue.Queue[str], word: str) -> str:
    seen = ""
    while word not in seen:
        seen += said.get(timeout=PATIENCE)
    return seen


def test_a_file_is_checked_again_when_it_changes_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("num_generations: 6\nper_device_train_batch_size: 8\n", encoding="utf-8")
    with watching(recipe) as (process, said):
        assert "INVALID" in until(said, "Ctrl-C ends it")
        recipe.write_text("num_generations: 8\nper_device_train_batch_size: 8\n", encoding="utf-8")
        assert "recipe.yaml changed" in until(said, "  VALID  ")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130


def test_a_change_is_a_time_a_size_a_new_and_a_lost_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n", encoding="utf-8")
    first = _watch.stamps([str(tmp_path)])
    assert list(first) == [str(file)]
    assert _watch.stamps([str(tmp_path)]) == first
    os.utime(file, ns=(1, 1))
    assert _watch.stamps([str(tmp_path)]) != first
    (tmp_path / "b.yaml").write_text("b: 1\n", encoding="utf-8")
    assert len(_watch.stamps([str(tmp_path)])) == 2
    file.unlink()
    assert list(_watch.stamps([str(file)])) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--framework", "trl", "--watch"], "--watch is of a FILE"),
        (["-", "--watch"], "--watch is of a FILE"),
        (["recipe.yaml", "--watch", "--fix"], "--watch only looks"),
    ],
)
def test_what_cannot_be_watched_is_a_usage_error(words: list[str], said: str, capsys: Any) -> None:
    assert main(["check", *words]) == 64
    assert said in capsys.readouterr().err
