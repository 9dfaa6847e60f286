"""The ledger: what each optimizer step of a running trainer really trained. docs/ledger.md describes the format.

Writing needs `records` alone; `reading` and `comparing` are imported by the functions here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbridge.ledger.records import (
    BESIDE,
    COLUMNS,
    EVENTS,
    SCALARS,
    TIMES,
    Header,
    StepRecord,
    Writer,
    digest_floats,
    fingerprint,
)

if TYPE_CHECKING:
    from batchbridge.ledger.comparing import LedgerDiff
    from batchbridge.ledger.reading import CountItems, StepStream

__all__ = [
    "BESIDE",
    "COLUMNS",
    "EVENTS",
    "SCALARS",
    "TIMES",
    "Header",
    "StepRecord",
    "Writer",
    "diff",
    "digest_floats",
    "fingerprint",
    "read_headers",
    "read_steps",
]


def read_headers(folder: Path | str) -> list[dict[str, Any]]:
    """The header records of all ranks, by rank, then in the order of their starts. Raises `LedgerError`."""
    from batchbridge.ledger.reading import Ledger

    return [header for file in Ledger(folder).files for header in file.headers]


def read_steps(folder: Path | str, *, start: int | None = None) -> StepStream:
    """The ledger's optimizer steps from `start` on, all ranks merged, in order; memory does not grow with the run.

    Each step is a dict of `SCALARS`, `COLUMNS` (rows sorted by `KEY`; non-finite floats are floats again), "rank" (a
    column: where the row was trained), "ranks" (the world size at that step) and "disagreeing": scalars on which the
    ranks differ, with each rank's value; the merged value is rank 0's. "compute_seconds" and "halved_budgets" have each
    rank's, None where it is unknown or none, and are None where it is of all. Of a step that was recorded again after a
    resume the last record that all ranks have is taken. A ledger that ends inside a step (killed) ends before that
    step, and `StepStream.incomplete` says so. Raises `LedgerError`, naming file and line.
    """
    from batchbridge.ledger.reading import Ledger, StepStream

    ledger = Ledger(folder)
    return StepStream(ledger, ledger.first_step if start is None else start)


def diff(
    folder_a: Path | str,
    folder_b: Path | str,
    *,
    exact: bool = False,
    rtol: float = 1e-6,
    watch: CountItems | None = None,
) -> LedgerDiff:
    """The first optimizer step in which two recorded runs differ, and in what.

    The runs may be of any frameworks and world sizes, or one run before and after a resume; both ledgers are streamed.
    See `batchbridge.ledger.comparing`.

    Args:
        folder_a: The ledger of one run.
        folder_b: The ledger of the other.
        exact: Asks for equality, also of old log-probabilities, rewards and gradient norms.
        rtol: Relative tolerance of floats otherwise.
        watch: Gets the pairs of steps and how many there may be, and hands the pairs on; for a progress bar.

    Returns:
        The first difference, and what was not compared.

    Raises:
        LedgerError: A ledger cannot be read.
    """
    from batchbridge.ledger.comparing import compare
    from batchbridge.ledger.reading import Ledger, unwatched

    a = Ledger(folder_a)
    b = Ledger(folder_b, beside=a)
    return compare(a, b, rtol=0.0 if exact else rtol, exact=exact, watch=watch or unwatched)
