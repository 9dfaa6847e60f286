"""The findings that a project lives with for now: `check --baseline FILE`, written with `--write-baseline`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from batchbridge.cli._output import writing
from batchbridge.meaning.briefs import many
from batchbridge.meaning.findings import Finding
from batchbridge.render.formats import fingerprint, message

if TYPE_CHECKING:
    from batchbridge.reports import Check

_VERSION = 1
_CHARACTERS = 200
"""The most characters of a message that are written."""


def load(path: Path) -> frozenset[str]:
    """The fingerprints of a baseline. Raises `click.UsageError` where it is none."""
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["batchbridge_baseline"] != _VERSION:
            raise ValueError(f"it is of version {found['batchbridge_baseline']!r:.20}, and {_VERSION} is read")
        return frozenset(str(one["fingerprint"]) for one in found["findings"])
    except FileNotFoundError:
        raise click.UsageError(f"baseline {path}: there is no such file; --write-baseline writes it") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise click.UsageError(f"baseline {path}: this is not a baseline: {error!r:.100}") from None


def write(path: Path, reports: Iterable[Check]) -> str:
    """Writes what counts in `reports`, and says how much that is. Raises `click.UsageError` where it cannot be done."""
    from batchbridge.render import json

    found = [
        {
            "file": beside(path, report.name),
            "code": finding.code,
            "message": message(finding)[:_CHARACTERS],
            "fingerprint": fingerprint(beside(path, report.name), finding),
        }
        for report in reports
        for finding in report.findings
    ]
    with writing(f"baseline {path}"):
        path.write_text(json.dumps({"batchbridge_baseline": _VERSION, "findings": found}) + "\n", encoding="utf-8")
    return many(found, "finding")


def knows(path: Path, known: frozenset[str], file: str, finding: Finding) -> bool:
    """Whether a finding about `file` stands in the baseline at `path`, whose fingerprints are `known`."""
    return fingerprint(beside(path, file), finding) in known


def beside(path: Path, file: str) -> str:
    """`file` as seen from the folder of `path`: the same from wherever the command is started."""
    return PurePath(os.path.relpath(file, path.parent)).as_posix()
