"""Open-Instruct's own checks, and what its scripts do silently, as tables.

Each row: code, what must hold, severity, when the script itself notices, the scripts and checkouts that it holds in,
and the source. Codes are stable; a number is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from batchbridge import Finding
from batchbridge_open_instruct.rules.grpo_refused import GRPO_REFUSED
from batchbridge_open_instruct.rules.grpo_silent import GRPO_SILENT
from batchbridge_open_instruct.rules.ppo import PPO_REFUSED, PPO_SILENT
from batchbridge_open_instruct.rules.row import Facts, Native, Rule
from batchbridge_open_instruct.settings import SCRIPTS

if TYPE_CHECKING:
    from batchbridge_open_instruct.meaning import OpenInstructReading

__all__ = ["RULES", "Rule", "check", "known_defects"]

RULES: tuple[Rule, ...] = (*GRPO_REFUSED, *PPO_REFUSED, *GRPO_SILENT, *PPO_SILENT)
assert all(script in SCRIPTS for rule in RULES for script in rule.scripts)


def check(reading: OpenInstructReading) -> Sequence[Finding]:
    """The findings of every row on this reading; none while a setting could not be read."""
    if not reading.decided or reading.checkout is None:
        return ()
    facts = Facts(reading.native, reading.given, reading.dataset_size)
    return tuple(_findings(facts, reading.checkout, reading))


def known_defects(native: Native, checkout: str) -> list[Finding]:
    """The rows that are defects of the script."""
    facts = Facts(native, {}, None)
    return list(_findings(facts, checkout, None, defects=True))


def _findings(
    facts: Facts, checkout: str, reading: OpenInstructReading | None, *, defects: bool = False
) -> Iterator[Finding]:
    for rule in RULES:
        if not rule.holds(facts.native, checkout) or (defects and not rule.defect):
            continue
        problem = rule.test(facts)
        if problem is not None:
            where = () if reading is None else reading.where(*problem.keys)
            yield Finding(
                rule.code,
                rule.severity,
                rule.phase,
                problem.message,
                where,
                problem.fixes,
                native=rule.native,
                source=f"open-instruct {checkout}: {rule.source}",
            )
