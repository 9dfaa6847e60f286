"""Signals of `batchbridge run`, handed to its command once each.

A terminal sends Ctrl-C to every process of its foreground group, and so to the command, too; a scheduler may send to
the group, to every process, or to `batchbridge run` alone. No system call says which it was. A witness does, a process
of the same group that does nothing else: what it had, the command has had.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WITNESS = Path(__file__).with_name("_witness.py")
_SECONDS = 0.5
"""The time that the witness may take to say that it had a signal, too."""


class Signals:
    """The handing on of signals to a command. `command` is the process, once it is started; before that they are
    kept."""

    def __init__(self, witness: subprocess.Popen[bytes] | None) -> None:
        self.command: subprocess.Popen[bytes] | None = None
        self._kept: list[int] = []
        self._witness = witness
        self._seen: list[tuple[int, float]] = []

    def started(self, command: subprocess.Popen[bytes]) -> None:
        """The command runs: it gets what came before it did."""
        self.command = command
        while self._kept:
            command.send_signal(self._kept.pop(0))

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler: the command gets the signal, unless it has had it."""
        if self.command is None:
            self._kept.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self.command.pid) != os.getpgrp() or not self._had_by_all(number):
                self.command.send_signal(number)

    def _had_by_all(self, number: int) -> bool:
        """Whether the witness had the signal just now."""
        until = time.monotonic() + _SECONDS
        while self._witness is not None and self._witness.stdout is not None:
            for place, (seen, at) in enumerate(self._seen):
                if seen == number and at > until - 2 * _SECONDS:
                    del self._seen[place]
                    return True
            wait = until - time.monotonic()
            if wait <= 0 or not select.select([self._witness.stdout], [], [], wait)[0]:
                return False
            said = os.read(self._witness.stdout.fileno(), 4096)
            if not said:
                return False
            self._seen += [(int(word), time.monotonic()) for word in said.split()]
        return False


@contextmanager
def handed_on() -> Iterator[Signals]:
    """A block in which signals that would end us reach the command first. One that is ignored stays so."""
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    words = [sys.executable, "-I", "-S", str(_WITNESS), *(str(int(number)) for number in numbers)]
    witness: subprocess.Popen[bytes] | None = None
    with contextlib.suppress(OSError):
        witness = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert witness.stdout is not None
        os.read(witness.stdout.fileno(), 2)  # it is there
    signals = Signals(witness)
    before = {number: signal.signal(number, signals.handle) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if witness is not None:
            for pipe in (witness.stdin, witness.stdout):
                if pipe is not None:
                    pipe.close()
            witness.wait()
