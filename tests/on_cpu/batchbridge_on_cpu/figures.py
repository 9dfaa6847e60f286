"""Figures of the matrix: what its runs measured, with the commit and the date of the measuring.

A file `figures.json` is data of pages. It may be older than the code: `tests/repository/matrix_age.py` says what was
changed since.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ASKED = "BATCHBRIDGE_RECORD"
"""The environment variable that asks for figures to be kept: `1`. `nox -s matrix` sets it."""
MEASURED_ON = "measured_on"


def asked() -> bool:
    """Whether figures are kept."""
    return os.environ.get(ASKED) == "1"


def commit_of(place: Path, digits: int = 40) -> str:
    """The commit that is checked out in the repository of `place`; `CalledProcessError` where there is none."""
    return _git(place, "rev-parse", f"--short={digits}", "HEAD")


def measured_on(place: Path) -> dict[str, str]:
    """The commit that is checked out in the repository of `place`, "+changes" behind it where its code was changed
    since, and today's date."""
    commit = commit_of(place, 12)
    changed = _git(place, "status", "--porcelain", "--", ":/src", ":/adapters")
    return {"commit": f"{commit}{'+changes' if changed else ''}", "date": datetime.date.today().isoformat()}


def keep(file: Path, release: str, group: str, figures: Mapping[str, Any]) -> None:
    """Puts figures of a framework's release into a file, where that is asked for. Those of the group that were measured
    on another commit go: a group has figures of one."""
    if not asked():
        return
    with file.open("a+", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)  # pytest's other process may keep some, too
        opened.seek(0)
        kept, now = json.loads(opened.read() or "{}"), measured_on(file)
        of_release = kept.setdefault(release, {})
        if of_release.get(group, {}).get(MEASURED_ON, {}).get("commit") != now["commit"]:
            of_release[group] = {MEASURED_ON: now}
        of_release[group] |= figures
        opened.truncate(0)
        opened.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def rounded(value: float) -> float:
    """Two digits."""
    return float(f"{value:.1e}")


def _git(place: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(place if place.is_dir() else place.parent), *words],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
