"""Bars: of what takes long while someone looks, and of nothing else."""

from __future__ import annotations

import io
import sys

import pytest

from batchbridge.cli import _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says, in seconds."""
    now = [0.0]
    monkeypatch.setattr("batchbridge.cli._progress.time.monotonic", lambda: now[0])
    return now


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, clock: list[float], each: float, stop: int = 0) -> str:
    """What standard error gets while ten things are counted that take `each` seconds; taken until `stop`."""
    monkeypatch.setattr("sys.stderr", stream)
    taken = []
    for item in _progress.progress(range(10), 10, "counted"):
        clock[0] += each
        taken.append(item)
        if len(taken) == stop:
            break
    assert taken == list(range(stop or 10))
    return stream.getvalue()


def test_what_takes_two_seconds_gets_a_bar_that_reaches_the_end(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    said = shown(monkeypatch, Terminal(), clock, each=0.5)
    assert "counted" in said
    assert "100%" in said
    assert said.endswith("\n\x1b[1A\x1b[2K")  # the bar's line is erased


def test_what_is_quick_gets_none(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    assert shown(monkeypatch, Terminal(), clock, each=0.19) == ""


def test_what_is_done_gets_none(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    for _ in _progress.progress(range(1), 1, "counted"):
        clock[0] += 60
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]  # a Terminal


def test_a_pipe_and_a_file_get_none(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    assert shown(monkeypatch, io.StringIO(), clock, each=60) == ""


def test_a_bar_that_is_left_ends_its_line(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    assert shown(monkeypatch, Terminal(), clock, each=60, stop=4).endswith("\n")
