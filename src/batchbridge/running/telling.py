"""The lines that a launched run says, in whatever process: on stderr, each after `batchbridge:`, so that they are found
among thousands of Ray's; and in a file beside the ledger.

And the words of Python processes that die: kept for the command, which asks `batchbridge.diagnosis` about them.
Standard library only: every Python process of the job imports this.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

LOG = "batchbridge.log"
"""The file beside a ledger."""
DIED = "died"
"""The beginning of the names of receipts that have the traceback of a process."""
_MOST_CHARACTERS = 1 << 18
_waiting: dict[Path, list[str]] = {}


def tell(text: str, ledger: Path | str | None = None, *, logged: str | None = None) -> None:
    """Says `text` on stderr, and writes it to the log of the ledger in the folder `ledger`, once that folder is there.

    logged: what is written instead, which may be longer."""
    for line in text.splitlines():
        print(f"batchbridge: {line}", file=sys.stderr, flush=True)
    if ledger is not None:
        log(text if logged is None else logged, ledger)


def log(text: str, ledger: Path | str) -> None:
    """Writes to the log alone. What was said before the folder was there is written with what follows; a log that
    cannot be written ends no run."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    folder = Path(ledger)
    lines = _waiting.setdefault(folder, [])
    lines.extend(f"{now} {os.getpid()} {line}\n" for line in text.splitlines())
    if folder.is_dir():
        with contextlib.suppress(OSError), (folder / LOG).open("a", encoding="utf-8") as file:
            file.write("".join(lines))
            del _waiting[folder]


def keep_last_words(folder: Path | str) -> None:
    """Makes this process leave in `folder` the traceback of what it dies of: an exception that nobody catches, or one
    that is caught to print it and to exit (Hydra does so)."""
    native_hook, native_exit = sys.excepthook, sys.exit

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            _keep(error, folder)
        native_hook(kind, error, trace)

    def exit_(status: Any = None, /) -> Any:
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and status not in (None, 0):
            _keep(error, folder)
        native_exit(status)

    sys.excepthook, sys.exit = excepthook, exit_


def last_words(folder: Path | str) -> str:
    """The tracebacks that processes left in `folder`, in the order of their deaths."""
    files = sorted(Path(folder).glob(f"{DIED}-*"), key=lambda file: file.stat().st_mtime_ns)
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def _keep(error: BaseException, folder: Path | str) -> None:
    import traceback

    with contextlib.suppress(Exception):  # whatever an exception's own text does, it is said as it would have been
        if Path(folder).is_dir():
            text = "".join(traceback.format_exception(error))[-_MOST_CHARACTERS:]
            (Path(folder) / f"{DIED}-{os.getpid()}").write_text(text, encoding="utf-8", errors="replace")
