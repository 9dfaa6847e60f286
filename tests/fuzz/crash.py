"""Crashes of the process itself: code in C that reads beyond its memory, or never returns, leaves no traceback.

The readers run in a child. Before each input it notes which one comes, in memory that it shares with its parent, and
that the parent reads when a signal has ended the child.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

STUCK = 3
"""A child that takes so many times an input's CPU time without coming back to Python is ended by SIGPROF."""


@dataclass(frozen=True)
class Input:
    """What makes an input again."""

    seed: str
    reader: str
    number: int


class Mark:
    """The input that is being read, in memory that outlives the process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared with whoever is forked

    def put(self, one: Input) -> None:
        """Before the input is read."""
        line = json.dumps([one.seed, one.reader, one.number]).encode() + b"\n"
        self._memory[: len(line)] = line

    def get(self) -> Input | None:
        """The last one; None where there was none."""
        line, end, _ = self._memory[:].partition(b"\n")
        return Input(*json.loads(line)) if end else None


def ends_with_the_input(cpu_seconds: float) -> None:
    """From here on this process ends in so much CPU time (0: never), unless it asks again. A Python handler would wait
    for C to return; the system's own does not."""
    signal.setitimer(signal.ITIMER_PROF, STUCK * cpu_seconds)


def survived(work: Callable[[Mark], int], crashed: Callable[[Input | None, str], None]) -> int:
    """The exit code of `work` in a child process; 1 where a signal ended it, after `crashed` was told which.

    crashed: gets the input that was being read, and what happened to the process.
    """
    mark = Mark()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70  # of a child that ends with an exception of its own
        try:
            code = work(mark)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    before = signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.signal(signal.SIGTERM, before)
    if code >= 0:
        return code
    crashed(mark.get(), f"the process ended with {signal.Signals(-code).name}")
    return 1
