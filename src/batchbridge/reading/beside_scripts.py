"""Files of the user's repository that a launch script leads to: where it goes, and what it sources.

Its own file: most scripts do neither, and import nothing for it.
"""

from __future__ import annotations

import re
from pathlib import Path

from batchbridge.reading.documents import root_of

_CD = re.compile(r"^[ \t]*(?:cd|pushd)[ \t]+([\w./-]+)[ \t]*(?:$|[;&#])", re.MULTILINE)
_MOST_SCRIPT = 256 * 1024
"""The largest script that is searched for where it goes, or sourced (bytes)."""


def gone_to(script: Path) -> list[str]:
    """The relative folders below its own that a shell script goes to."""
    if script.suffix not in (".sh", ".bash", ".slurm", ".sbatch") or script.stat().st_size > _MOST_SCRIPT:
        return []
    said = dict.fromkeys(_CD.findall(script.read_text(encoding="utf-8", errors="replace")))
    return [folder for folder in said if not folder.startswith((".", "/", "-"))]


def text_beside(named: str, file: Path | None, script: Path) -> str | None:
    """The text of a file of the user's repository that a shell script sources or runs by this name; None: it is not
    here, or is no script of a run (an environment's `activate`). What stands outside of the repository, by a path from
    the root, is this machine's and says nothing about the run's."""
    if named.startswith("~") or not named.endswith((".sh", ".bash", ".env", ".conf", ".cfg")):
        return None
    if file is None or file.stat().st_size > _MOST_SCRIPT:
        return None
    if named.startswith("/") and not _is_of_the_repository(file, script):
        return None
    return file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def _is_of_the_repository(file: Path, script: Path) -> bool:
    root = root_of(script) or script.resolve().parent
    return file.resolve().is_relative_to(root)
