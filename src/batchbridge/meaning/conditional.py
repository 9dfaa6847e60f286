"""Findings of a run whose trainer may not be the framework's own: what holds only if it is, is not decided.

Its own file: a reading imports it only for such a trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from batchbridge.meaning.findings import CONDITION, Finding, Where

_OF_INPUT = re.compile(r"BB0\d\d")
"""Codes of the reading of a file: whoever trains, these are wrong."""


def conditional(findings: Iterable[Finding], supposed: str, why: str, places: tuple[Where, ...]) -> Iterator[Finding]:
    """Findings of which errors about the run are undecided, and the one that says why.

    supposed: the condition, as the rest of a sentence that begins with "if". why: what is known of it.
    """
    for finding in findings:
        certain = finding.severity == "error" and not finding.undecided
        if certain and not _OF_INPUT.fullmatch(finding.code):
            finding = replace(finding, message=f"if {supposed}: {finding.message}", undecided=True)
        yield finding
    message = f"the numbers and the rules hold if {supposed}: {why}"
    yield Finding(CONDITION, "warning", "config", message, places, undecided=True)


def unconditional(findings: Iterable[Finding], supposed: str) -> Iterator[Finding]:
    """The findings that `conditional` was given."""
    start = f"if {supposed}: "
    for finding in findings:
        if finding.code == CONDITION:
            continue
        if finding.undecided and finding.message.startswith(start):
            finding = replace(finding, message=finding.message.removeprefix(start), undecided=False)
        yield finding
