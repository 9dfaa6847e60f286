"""A ledger that is read, and drawn on a terminal, while its run writes it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_ledger import header, record, rows_of

from batchbridge.errors import LedgerError
from batchbridge.ledger import Writer
from batchbridge.ledger.following import FollowedLedger, Progress, remaining_seconds
from batchbridge.render.following import screen

COLUMNS = 80
Ledger = Callable[..., Path]


def steps(ledger: FollowedLedger) -> list[int]:
    return [step["step"] for step in ledger.news()]


def test_a_step_is_there_once_all_ranks_have_it(tmp_path: Path) -> None:
    ledger = FollowedLedger(tmp_path)
    assert steps(ledger) == []
    first, second = (Writer(tmp_path, header(rank, 2)) for rank in range(2))
    first.append(record(0, rows_of(0)[::2]))
    assert steps(ledger) == []
    second.append(record(0, rows_of(0)[1::2]))
    first.append(record(1, rows_of(1)[::2]))
    (step,) = ledger.news()
    assert step["step"] == 0
    assert sum(step["response_tokens"]) == 10
    assert step["rank"] == [0, 1, 0, 1]
    second.append(record(1, rows_of(1)[1::2]))
    assert steps(ledger) == [1]
    for writer in (first, second):
        writer.close()


def test_a_line_that_is_not_whole_yet_is_waited_for(ledger: Ledger, tmp_path: Path) -> None:
    whole = (ledger("whole", steps=2) / "rank-00000.jsonl").read_bytes()
    (tmp_path / "live").mkdir()
    found, followed = [], FollowedLedger(tmp_path / "live")
    for stop in (10, len(whole) // 2, len(whole) - 1, len(whole)):
        (tmp_path / "live" / "rank-00000.jsonl").write_bytes(whole[:stop])
        found.append(steps(followed))
    assert found == [[], [], [0], [1]] or found == [[], [0], [], [1]]


def test_a_run_that_resumes_says_its_steps_again(ledger: Ledger, tmp_path: Path) -> None:
    folder = ledger("a", steps=3)
    followed = FollowedLedger(folder)
    assert steps(followed) == [0, 1, 2]
    with (folder / "rank-00000.jsonl").open("ab") as file:
        file.write(b'{"record":"step","step":3,"torn')  # a kill; the next start cuts it off
    with Writer(folder, header(started="resumed", at_step=2)) as writer:
        writer.append(record(2, rows_of(2)))
    assert steps(followed) == [2]
    assert followed.total == 4


def test_a_file_is_no_folder_of_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="no folder of a ledger"):
        steps(FollowedLedger(tmp_path / "file"))


def test_the_screen_says_steps_tokens_drift_and_the_slowest_rank(ledger: Ledger) -> None:
    def timed(step: int, rows: list[dict[str, object]], scalars: dict[str, object]) -> None:
        rows[0]["weights"] = 0.11 if step == 1 else 0.1

    followed, progress = FollowedLedger(ledger("a", steps=3, edit=timed)), Progress()
    for step in followed.news():
        step["compute_seconds"] = [1.0, 3.0]  # as two ranks would have it
        progress.add(step, followed.drift(step))
    assert screen(followed, progress, 90.0, 200)[1:] == [
        "steps      [##################------] 3 of 4, 75 %, 1 min left",
        "tokens     10 in 4 completions, 10 on average",
        "drift      0 in this step, at most 0.1 (step 1)",
        "optimizer  learning rate 0.001, gradient norm 0.5, 0 skipped",
        "slowest    rank 1, 1.50 times the mean; rank 1 in 3 of 3 steps",
    ]
    assert all(len(line) <= 40 for line in screen(followed, progress, None, 40))


@pytest.mark.parametrize(("total", "done", "left"), [(None, 3, None), (10, 1, None), (10, 6, 4.0), (5, 6, 0.0)])
def test_the_time_that_is_left_is_of_the_pace_so_far(total: int | None, done: int, left: float | None) -> None:
    assert remaining_seconds(total, done, 1, float(done - 1)) == left


def terminal_of(folder: Path) -> tuple[int, int]:
    """`ledger show --follow` on a terminal of 80 columns: its process, and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "batchbridge", "ledger", "show", "--follow", str(folder)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    return pid, terminal


def read_until(terminal: int, word: str, seconds: float = 60) -> str:
    said, until = b"", time.monotonic() + seconds
    while word.encode() not in said and time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 4096)
            except OSError:  # the terminal's process is gone
                break
    return said.decode()


def drawn(said: str) -> list[str]:
    """What a terminal shows in the end of lines that are drawn over each other."""
    lines: list[str] = []
    place = 0
    for part in said.replace("\r", "").split("\n"):
        for up in re.findall(r"\x1b\[(\d+)A", part):
            place -= int(up)
        lines[place : place + 1] = [re.sub(r"\x1b\[\d+[AK]", "", part)]
        place += 1
    return lines


def test_a_terminal_shows_the_run_while_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100)  # longer than the terminal is wide
    pid, terminal = terminal_of(folder)
    said = read_until(terminal, "aaa...")
    with Writer(folder, header()) as writer:
        for step in range(4):
            writer.append(record(step, rows_of(step)))
            said += read_until(terminal, f"{step + 1} of 4")
    said += read_until(terminal, "\0never")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, "it ends with the run's last step"
    lines = drawn(said)
    assert all(len(line) <= COLUMNS for line in lines), lines
    assert [line.split()[0] for line in lines[1:6]] == ["steps", "tokens", "drift", "optimizer", "slowest"]
    assert "[########################] 4 of 4, 100 %" in lines[1]


def test_a_pipe_gets_a_line_a_step(ledger: Ledger) -> None:
    words = [sys.executable, "-m", "batchbridge", "ledger", "show", "--follow", str(ledger("a"))]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert [line.split("  ")[0] for line in ran.stdout.splitlines()] == ["step 0", "step 1", "step 2", "step 3"]
    assert ran.stdout.splitlines()[0].endswith("drift 0")
