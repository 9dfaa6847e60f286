"""A run that starts anew where an earlier start has left a ledger: it is set aside where nothing can go on with it.

A run that was killed before its first checkpoint, and a second training in one process, begin at step 0 again. What was
written before stays, beside the ledger, under the first number that is free: `runs/a` becomes `runs/a.1`. So the folder
that the user has named is always that of the last start, and the same command can be started again and again.
"""

from __future__ import annotations

from pathlib import Path

from batchbridge.errors import LedgerError

_BEGUN: set[Path] = set()
"""The ledgers of the trainings that this process has begun."""


def begun(ledger: Path) -> None:
    """Remembers that a training of this process writes to the ledger."""
    _BEGUN.add(ledger.absolute())


def make_way(ledger: Path, checkpoint: Path | None) -> str | None:
    """Sets the ledger of an earlier start aside, and says so; None where there is none. checkpoint: a finished one that
    the earlier run has left.

    Raises `LedgerError` where the run that wrote the ledger could go on from `checkpoint`, and where the files cannot
    be moved. One process of a run calls it, and the others wait for it.
    """
    again, files = ledger.absolute() in _BEGUN, sorted(ledger.glob("rank-*.jsonl"))
    if files and checkpoint is not None and not again:
        what = (
            f"exists already, and this run starts anew, although the run that wrote it can go on from {checkpoint}: "
            "resume from there, or name another folder"
        )
        raise LedgerError(what, files[0])
    begun(ledger)
    if not files:
        return None
    try:
        aside = _numbered(ledger)
        for file in files:
            file.replace(aside / file.name)
    except OSError as error:
        raise LedgerError(f"the ledger of an earlier start cannot be set aside: {error.strerror}", ledger) from error
    why = "a training that this process began before" if again else "a run that was over before its first checkpoint"
    return f"{ledger} held the ledger of {why}: it is now {aside}"


def _numbered(ledger: Path) -> Path:
    """A new folder beside the ledger, whose name ends in the first number that is free."""
    number = 1
    while True:
        folder = ledger.with_name(f"{ledger.name}.{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
