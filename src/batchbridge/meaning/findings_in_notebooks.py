"""The table of findings that notebooks show.

Its own file: a finding itself is shown by `notebook`, which therefore knows none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchbridge.meaning import notebook
from batchbridge.meaning.findings import Finding, kind_of


def findings_table(found: Iterable[Finding]) -> str:
    """A table of findings, each with its place and what to use instead."""
    return notebook.table(("finding", "severity", "what", "where", "use instead"), _rows(found))


def _rows(found: Iterable[Finding]) -> Iterator[tuple[str, ...]]:
    for one in found:
        where, fixes = "; ".join(map(str, one.where)), ", or ".join(fix.text for fix in one.fixes)
        yield one.code, kind_of(one), one.message, where, fixes
