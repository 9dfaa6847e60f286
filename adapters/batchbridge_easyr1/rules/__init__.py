"""EasyR1's own rules, and what it does silently: tables, each row with phase, source and ways out.

`refused_sizes` and `refused`: what it notices sooner or later; `silent`: what nothing reports (phase `never`). Codes
are stable; a number is never used again. 001 to 009 belong to reading: see `config`.
"""

from __future__ import annotations

from batchbridge import Finding, Reading
from batchbridge.kit import Defect, rule_table
from batchbridge_easyr1.rules import refused, refused_sizes, silent
from batchbridge_easyr1.run import EasyR1Run

__all__ = ["RULES", "check", "defects"]

RULES = (*refused_sizes.RULES, *refused.RULES, *silent.RULES)


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its run is unknown."""
    run = getattr(reading, "run", None)
    if not isinstance(run, EasyR1Run):
        return []
    return rule_table.checked(reading.framework, RULES, run, run.version, lambda keys: reading.where(*keys))


def defects(run: EasyR1Run) -> tuple[Defect, ...]:
    """The rows that apply, that EasyR1 itself never reports, and that change what is trained."""
    return rule_table.defects(RULES, run, run.version)
