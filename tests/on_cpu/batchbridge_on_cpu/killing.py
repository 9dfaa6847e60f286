"""One unchanged command, started again and again while SIGKILL ends it at random moments, until it ends by itself.

A start is some processes: forks of this one once everything is imported (`forked`), so that moments are those of a
command's work and not of Python's imports; or a program with all that it starts itself (`launched`), Ray's processes,
say. Of several the one that is hit dies at once, and the others right after it, as torchrun ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_STARTS = 60
MARK = "BATCHBRIDGE_STARTED_BY"
"""The environment variable by which everything that a program has started is known."""


def forked(commands: Sequence[Callable[[], None]]) -> list[int]:
    """A process for each command."""
    if "tqdm" in sys.modules:
        # tqdm's own lock is a semaphore that forks share: the start that is killed while it holds it would block all
        # that come after it.
        sys.modules["tqdm"].tqdm.set_lock(threading.RLock())
    found = []
    for command in commands:
        child = os.fork()
        if not child:
            code = 1
            try:
                command()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        found.append(child)
    return found


class Launched:
    """A program whose starts can be killed with all that they have started. log: what they print."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._words, self._folder, self._mark = [*words], folder, uuid.uuid4().hex
        self._environment = {**environment, MARK: self._mark}
        self.log = folder / "log.txt"

    def start(self) -> list[int]:
        """Its process, once nothing of an earlier start is left."""
        self.clear()
        with self.log.open("a", encoding="utf-8") as log:
            options = {"stdout": log, "stderr": subprocess.STDOUT, "cwd": self._folder, "env": self._environment}
            return [subprocess.Popen(self._words, start_new_session=True, **options).pid]  # type: ignore[call-overload]

    def clear(self) -> None:
        """Ends what the program has started, whoever is its parent by now."""
        wanted = f"{MARK}={self._mark}".encode()
        while True:
            left = []
            for one in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if wanted in (one / "environ").read_bytes().split(b"\0") and int(one.name) != os.getpid():
                        left.append(int(one.name))
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


LONGEST = 120.0
"""Seconds for which a start may take to begin with what it is killed in."""


def ended(
    children: Sequence[int], seconds: float, hit: int, begun: Callable[[], bool] = lambda: True
) -> list[int | None]:
    """The exit codes of the processes, of which number `hit` is killed some seconds after something has begun, and then
    the others; None: it was killed."""
    codes: dict[int, int] = dict.fromkeys(children, -99)
    left, last, limit = list(children), time.monotonic() + LONGEST, None
    while left and time.monotonic() < (last if limit is None else limit):
        if limit is None and begun():
            limit = time.monotonic() + seconds
        for child in list(left):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                codes[child] = os.waitstatus_to_exitcode(status)
                left.remove(child)
        time.sleep(0.005)
    for child in sorted(left, key=lambda each: each != children[hit]):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [None if child in left else codes[child] for child in children]


def run_to_its_end(folder: Path, start: Callable[[Path], Sequence[int]], *, seed: int, patience: float = 120.0) -> None:
    """Runs the command once whole, in FOLDER/whole, and then in FOLDER/killed until it ends; what happened is in
    FOLDER/said.json. start: starts it in a folder. patience: seconds of the whole run."""
    begun = time.monotonic()
    codes = ended(start(folder / "whole"), patience, 0)
    if any(codes):
        raise AssertionError(f"the command does not even end where nobody kills it: {codes}")
    takes, drawn, starts = time.monotonic() - begun, random.Random(seed), 0
    while starts < MOST_STARTS:
        starts += 1
        # Most moments are early: starts that die before their first checkpoint, or while they write one.
        seconds = takes * (drawn.random() * (0.5 if starts % 2 else 1.0) + starts / 12)
        children = start(folder / "killed")
        codes = ended(children, seconds, drawn.randrange(len(children)))
        if None not in codes:  # it ended by itself, well or not
            break
    said = {"starts": starts, "seconds": takes, "codes": codes}
    (folder / "said.json").write_text(json.dumps(said), encoding="utf-8")


def assert_ends_alike(folder: Path) -> dict[str, Any]:
    """What `run_to_its_end` left: the killed command ended well, after some starts, with the ledger of the whole one,
    of which it keeps every step once and to the last bit. Returns what happened."""
    from batchbridge.ledger import diff

    said: dict[str, Any] = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    assert set(said["codes"]) == {0}, said
    assert said["starts"] > 2, "hardly anything was killed"
    compared = diff(folder / "whole" / "ledger", folder / "killed" / "ledger", exact=True)
    assert compared.equal, compared.text()
    return said
