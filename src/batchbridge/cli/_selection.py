"""Which findings count: `--select` and `--ignore`; and from which severity on a command fails."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import click

from batchbridge.cli._input import EXIT_CODES
from batchbridge.cli.main import FINE
from batchbridge.meaning.findings import Finding, Verdict

FAIL_ON = ("error", "undecided", "warning")
"""What makes the exit code other than 0; each includes those before it."""
_CODE = re.compile(r"BB(?:\d{0,3}|-[A-Z0-9-]*)")
_UNREAD = re.compile(r"BB00\d")
"""Errors of these codes keep a file from being read: they always count."""
_INPUT = re.compile(r"BB0\d\d")
"""Of reading a file, of its framework and version, and of plugins: `--select` chooses among the other rules."""


def codes(texts: Iterable[str], said: str) -> tuple[str, ...]:
    """Codes or their beginnings, from options each of which may hold several (`BB121,BB-TRL`). Raises
    `click.UsageError`, which names where they were `said`."""
    found = tuple(code for text in texts for code in re.split(r"[\s,]+", text.strip()))
    if wrong := [code for code in found if not _CODE.fullmatch(code)]:
        raise click.UsageError(
            f"{said} {wrong[0]!r}: a code such as BB-TRL-062, or its beginning (BB-TRL), was expected"
        )
    return found


@dataclass(kw_only=True)
class Selection:
    """The findings that count. select: codes, or beginnings of codes, of the rules that are asked; none: all.
    ignore: of those that are not. dropped: codes of the findings that did not count so far."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    dropped: set[str] = field(default_factory=set)

    def counts(self, finding: Finding) -> bool:
        """Whether it does. Errors that keep a file from being read always do."""
        if finding.severity == "error" and _UNREAD.fullmatch(finding.code):
            return True
        chosen = not self.select or finding.code.startswith(self.select) or _INPUT.fullmatch(finding.code)
        if chosen and not finding.code.startswith(self.ignore):
            return True
        self.dropped.add(finding.code)
        return False


def exit_code(verdict: Verdict, findings: Iterable[Finding], fail_on: str) -> int:
    """Of `check`: 0, 2 (an error, or a warning where these are to fail), 4 (undecided, where that is to fail)."""
    if fail_on == "warning" and any(finding.severity == "warning" and not finding.undecided for finding in findings):
        return EXIT_CODES["invalid"]
    return FINE if verdict == "undecided" and fail_on == "error" else EXIT_CODES[verdict]
