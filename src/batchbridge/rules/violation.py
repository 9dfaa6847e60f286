"""A broken rule of the core, before it is a finding.

Its own file: both tables of rules import it.
"""

from __future__ import annotations

from typing import NamedTuple

from batchbridge.meaning.findings import Fix


class Violation(NamedTuple):
    """One broken rule: what is wrong, with its numbers and units; the canonical fields it is about; ways out."""

    message: str
    fields: tuple[str, ...]
    fixes: tuple[Fix, ...] = ()
