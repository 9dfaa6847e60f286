"""Processes that go on when the command that started them has ended: `nohup python train.py &` in a script.

On Linux the environment of every process says which launch it belongs to. Elsewhere no system call does, and none is
found: what such a process trains is then said by its own log beside the ledger alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PROCESSES = Path("/proc")
_PAUSE = 0.2
_REPLACED = 2.0
"""Seconds that the kernel may take to put a program in a process's place: far more than a busy machine needs."""
_OF_RAY = ("raylet", "gcs_server")


@dataclass(frozen=True, kw_only=True)
class Outliving:
    """A process that goes on: its number, and its words."""

    pid: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        said = " ".join(self.words)
        return f"PID {self.pid} ({said if len(said) <= 60 else said[:57] + '...'})"


def outliving(run: str) -> list[Outliving]:
    """The processes of the launch `run` that this user has, but for this one and Ray's own, which start no trainer once
    their driver has ended."""
    found = []
    for folder in sorted(_PROCESSES.glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            environment, given = _told(folder)
        except OSError:  # it has ended, or is another user's
            continue
        if run.encode() not in environment:
            continue
        words = tuple(word.decode(errors="replace") for word in given.split(b"\0") if word)
        if words and int(folder.name) != os.getpid() and not _is_rays(words):
            found.append(Outliving(pid=int(folder.name), words=words))
    return found


def _told(process: Path) -> tuple[bytes, bytes]:
    """(environment, words) of a process. One that is just being replaced by a program (exec) has an executable and
    neither: it is asked again, or it would be passed over."""
    end = time.monotonic() + _REPLACED
    while True:
        words = (process / "cmdline").read_bytes()
        if words or time.monotonic() > end:
            return (process / "environ").read_bytes(), words
        (process / "exe").readlink()  # a thread of the kernel and a process that has ended have none: OSError
        time.sleep(_PAUSE / 100)


def _is_rays(words: tuple[str, ...]) -> bool:
    return any(
        word.startswith("ray::") or word.rpartition("/")[2] in _OF_RAY or "-packages/ray/" in word for word in words[:3]
    )


def waited_for(run: str, seconds: float, until: Callable[[], bool] = lambda: False) -> list[Outliving]:
    """The processes of the launch `run` that are still there once `until` is true, or after so many seconds."""
    end = time.monotonic() + seconds
    while (found := outliving(run)) and not until() and time.monotonic() < end:
        time.sleep(_PAUSE)
    return found
