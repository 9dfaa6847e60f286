"""The command of `batchbridge run`: what is put into its words, its start and its end, and what its receipts say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from batchbridge.reading.launchers import Stop
from batchbridge.running import spoken
from batchbridge.running.launch import ENVIRONMENT, JOB, JUDGED, LOST, TRAINER, Launch
from batchbridge.running.outlived import Outliving, outliving, waited_for
from batchbridge.running.signals import handed_on
from batchbridge.running.telling import last_words, log, tell

NATIVE = "it ran natively, or not at all"
PAGE = "docs/launch.md, On a Ray cluster, on Slurm, in a container"


def with_words(words: Sequence[str], stop: Stop, launch: Launch, own: Mapping[str, str]) -> list[str]:
    """The command with the launch as words before its program (`env NAME=VALUE`), where a launcher of it drops
    variables. own: the environment."""
    assert stop.place is not None, "only where variables can be given as words"
    path = own.get("PYTHONPATH", "") if stop.assigned == "$PYTHONPATH" else stop.assigned
    given = [f"{name}={value}" for name, value in launch.variables({"PYTHONPATH": path}).items()]
    return [*words[: stop.place], "env", *given, *words[stop.place :]]


def run(
    words: Sequence[str],
    launch: Launch,
    *,
    stop: Stop | None = None,
    explained: Callable[[str], Iterable[str]] = lambda died: (),
    unreached: int,
) -> int:
    """The exit code of the command `words`, started with the launch; `unreached`, and a line, where it ended well
    without a trainer that was wrapped, or its ledger could not be written to its end.

    stop: the launcher in `words` that drops variables. explained: the lines about a text that processes died of.
    Raises `OSError` where nothing starts.
    """
    with tempfile.TemporaryDirectory(prefix="batchbridge-run-", dir=_shared_folder(words)) as arrivals:
        launch = replace(launch, arrivals=arrivals)
        if stop is not None:
            words = with_words(words, stop, launch, os.environ)
            tell(f"{stop.reason}: `env {ENVIRONMENT}=... PYTHONPATH=...` stands behind it", launch.ledger)
        code = _started(words, launch, lambda: _reached(arrivals))
        try:
            going_on = _outlived(launch, arrivals, code)
        except KeyboardInterrupt:
            tell("not waited for any more; what goes on in the background was not ended", launch.ledger)
            return 128 + signal.SIGINT
        if code and (died := last_words(arrivals)):
            if launch.ledger is not None:
                log(died, launch.ledger)
            for line in explained(died):
                tell(line, launch.ledger)
        if going_on:
            for line in spoken.in_background(launch, code, going_on):
                tell(line, launch.ledger)
            return code
        if _reached(arrivals):
            for line in spoken.after(launch, code):
                tell(line, launch.ledger)
            lost = [file.read_text(encoding="utf-8") for file in sorted(Path(arrivals).glob(f"{LOST}-*"))]
            for line in lost[:1]:
                tell(line)
            return code or (unreached if lost else 0)
    of = "" if launch.framework == "unknown" else f" of {launch.framework}"
    tell(f"the command ended with exit code {code} without a trainer{of} that could be reached: {NATIVE}")
    return code or unreached


_SHORTLY, _LONG = 3.0, 600.0
"""Seconds that a process may take to end behind the command that waited for it, and that another may take to come to
its trainer, where --expect-within says nothing."""


def _outlived(launch: Launch, arrivals: str, code: int) -> list[Outliving]:
    """The processes that train when the command has ended: a script may have put its trainer into the background. One
    that has begun no trainer yet is waited for, since its trainer may still come."""
    left = outliving(launch.run)
    if left and not _reached(arrivals):
        left = waited_for(launch.run, _SHORTLY, lambda: _reached(arrivals))
    if left and not _reached(arrivals):
        seconds = launch.expect_within or _LONG
        tell(spoken.waiting(code, left), launch.ledger)
        left = waited_for(launch.run, seconds, lambda: _reached(arrivals))
        if left and not _reached(arrivals):
            tell(f"after {seconds:g} s (--expect-within) they still go on; no longer waited for", launch.ledger)
    trainers = {file.name for file in Path(arrivals).glob(f"{TRAINER}-*")}

    def trains(one: Outliving) -> bool:
        return f"{TRAINER}-{one.pid}" in trainers

    if any(map(trains, left)):
        left = waited_for(launch.run, _SHORTLY, lambda: not any(map(trains, outliving(launch.run))))
    return [one for one in left if trains(one)]


def dry_run(words: Sequence[str], launch: Launch, *, stop: Stop | None = None) -> tuple[list[str], int]:
    """(the receipts of what the command's trainers were judged as, its exit code). The command is ended once there is
    one, if it does not end by itself; trackers write nothing that stays (`NO_TRACKER`).

    Raises `OSError` where nothing starts.
    """
    with tempfile.TemporaryDirectory(prefix="batchbridge-dry-", dir=_shared_folder(words)) as arrivals:
        launch = replace(launch, arrivals=arrivals)
        if stop is not None:
            words = with_words(words, stop, launch, os.environ)
        code = _started(words, launch, lambda: _reached(arrivals))
        return [file.read_text(encoding="utf-8") for file in sorted(Path(arrivals).glob(f"{JUDGED}-*"))], code


NO_TRACKER = {"WANDB_MODE": "disabled"}
"""Variables by which trackers log nothing. Source: wandb 0.31.0, run."""


def _shared_folder(words: Sequence[str]) -> Path | None:
    """The folder for receipts, where Slurm starts the trainer, perhaps on another machine: the one that we are in."""
    slurm = "srun" in {word.rpartition("/")[2] for word in words}
    return Path.cwd() if slurm and os.access(Path.cwd(), os.W_OK) else None


def _reached(arrivals: str) -> bool:
    """Whether a trainer was wrapped, or a job that was sent to a cluster looks after it."""
    return any(any(Path(arrivals).glob(f"{name}-*")) for name in (TRAINER, JOB, JUDGED))


def _started(words: Sequence[str], launch: Launch, reached: Callable[[], bool]) -> int:
    """The command's exit code, as a shell has it. Where trainers are only judged, it has a session of its own, all of
    which is ended soon after one was reached."""
    expect_within, dry = launch.expect_within, bool(launch.instead)
    environment = launch.environment(os.environ)
    if dry:
        environment |= {**NO_TRACKER, "TRACKIO_DIR": str(Path(launch.arrivals or ".", "trackio"))}

    def remind() -> None:
        if not reached():
            tell(
                f"no trainer has been reached after {expect_within:g} s (--expect-within): if training has begun, it "
                f"runs natively ({PAGE})"
            )

    timer = threading.Timer(expect_within, remind)
    timer.daemon = True
    with handed_on() as signals:
        process = subprocess.Popen(list(words), env=environment, start_new_session=dry)
        signals.started(process)
        if expect_within:
            timer.start()
        try:
            code = _ended_once(reached, process, launch) if dry else process.wait()
        finally:
            timer.cancel()
    sys.stdout.flush()
    return code if code >= 0 else 128 - code


_GRACE = 10.0
"""Seconds that a command may take to end by itself, and again after it was asked to."""


def _ended_once(reached: Callable[[], bool], process: subprocess.Popen[bytes], launch: Launch) -> int:
    """The exit code of a command that leads a session of its own; of all of it nothing is left behind."""

    def wait(seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end and not until():
            time.sleep(0.1)

    try:
        wait(float("inf"), reached)
        waited_for(launch.run, launch.expect_within or _LONG, reached)
        wait(_GRACE)
        return process.wait() if process.poll() is not None else 0
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            for one in outliving(launch.run):  # in a session of its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, number)
            wait(_GRACE)
            waited_for(launch.run, _GRACE)
        process.wait()
