"""The ledger of one rank while its process trains: begun before anything is generated, opened with the first step,
and given up where the disk is full, while the run goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge.errors import LedgerError
from batchbridge.kit import new_start
from batchbridge.ledger import Header, StepRecord, Writer
from batchbridge.ledger.records import try_to_write
from batchbridge.running.launch import LOST, arrived

_LOST = "the run is not in its ledger"


class RankLedger:
    """One rank's file of a ledger, which is opened with the first step.

    first: the header of a start at step 0. required: a ledger that cannot be written any more ends the run.
    """

    def __init__(self, folder: Path, first: Header, *, required: bool) -> None:
        self._folder, self._first, self._required = folder, first, required
        self._writer: Writer | None = None
        self._lost: int | None = None
        """The first optimizer step that is not in the ledger, since it could not be written any more."""

    def begin(
        self,
        step: int,
        checkpoint: Callable[[], Path | None],
        gather: Callable[[Sequence[tuple[Any, ...]]], list[tuple[Any, ...]]],
    ) -> list[str]:
        """The check of `Recorder.begin`, which gives the rank's own `gather`. Collective."""
        mine = [] if self._first.rank else [_made_way(self._folder, checkpoint) if not step else ()]
        (told,) = gather(mine)
        if len(told) == len(_Refused._fields):
            raise LedgerError(*told)
        new_start.begun(self._folder)
        Writer.place(self._folder, self._header(step))
        try_to_write(self._folder, leave_folder=True)
        return list(told)

    def append(self, record: StepRecord) -> None:
        """Writes a record. A disk that is full ends the ledger, not the run, unless the ledger is required."""
        if self._lost is not None:
            return
        try:
            writer = self._opened(record.step)
            writer.require_file()
            writer.append(record)
        except LedgerError as error:
            refused = self._writer is None and not isinstance(error.__cause__, OSError)
            if refused or self._required:
                raise
            told = f"{_LOST} from optimizer step {record.step} on, and the run goes on: {error}"
            _say(told)
            with contextlib.suppress(OSError):
                arrived(f"{LOST}-{self._first.rank}-{os.getpid()}", told)
            self.close()
            self._lost = record.step

    def end(self, step: int, why: str) -> None:
        """Says that nothing is recorded from a step on. Raises `LedgerError`."""
        self._opened(step).end(why)

    def close(self) -> None:
        """Closes the file; a ledger that was given up is named once more."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lost is not None:
            _say(f"{_LOST} from optimizer step {self._lost} on")
            self._lost = None

    def _opened(self, step: int) -> Writer:
        if self._writer is None:
            self._writer = Writer(self._folder, self._header(step))
            weakref.finalize(self, self._writer.close)  # a run that raises closes nothing
        return self._writer

    def _header(self, step: int) -> Header:
        return dataclasses.replace(self._first, at_step=step, started="resumed" if step else "fresh")


class _Refused(NamedTuple):
    """A refusal to set a ledger aside, as it is told to the other ranks."""

    what: str
    file: Path | str


def _made_way(ledger: Path, checkpoint: Callable[[], Path | None]) -> tuple[Any, ...]:
    """(note,), an empty tuple, or `_Refused`: every rank hears of it."""
    try:
        note = new_start.make_way(ledger, checkpoint())
    except LedgerError as error:
        return _Refused(error.what, error.file)
    return () if note is None else (note,)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal's log may lie on the disk that is full
        print(f"batchbridge: {line}", file=sys.stderr, flush=True)
