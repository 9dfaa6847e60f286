"""`batchbridge check --watch`: the check again whenever a file changes, until Ctrl-C.

Files are looked at every half second (their time and size): no notification of the system's is needed, so that it works
on network drives, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import click

SECONDS = 0.5
"""The time between two looks."""


def watch(paths: Sequence[str], check: Callable[[], int]) -> NoReturn:
    """Checks once, and again whenever a file at or below one of `paths` changes, comes or goes; KeyboardInterrupt ends
    it, and nothing else. A mistake in the file's name ends the first check."""
    seen = stamps(paths)
    check()
    click.echo(f"watching {', '.join(paths)}; Ctrl-C ends it", err=True)
    while True:
        time.sleep(SECONDS)
        if (now := stamps(paths)) != seen:
            changed = sorted({file for file, _ in {*now.items()} ^ {*seen.items()}})
            click.echo(f"\n{', '.join(changed)} changed", err=True)
            seen = now
            check()


def stamps(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Time and size of every file at or below the paths; what is not there is left out."""
    from batchbridge.cli import _folder

    found = {}
    for file in (file for path in paths for file in (path, *_folder.files_of(path))):
        try:
            said = Path(file).stat()
        except OSError:  # written anew at this moment, or gone
            continue
        if not Path(file).is_dir():
            found[file] = (said.st_mtime_ns, said.st_size)
    return found
