"""TRL's rules and known defects, one row each: what must hold, when TRL notices, in which versions, and who says so.

`validated` are `GRPOConfig`'s own, in the order in which its post-init raises them, so that the first finding with
phase "config" is the exception that a user would see; `later` those of the trainer and of a run. What nothing reports
is about `rollouts`, about optimizer `steps`, or about single settings (`ignored`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchbridge import Finding, Reading, Where
from batchbridge.kit import Defect, rule_table
from batchbridge_trl.rules import ignored, later, retired, rollouts, steps, validated
from batchbridge_trl.rules.facts import TrlFacts, facts_of
from batchbridge_trl.rules.ignored import uncarried
from batchbridge_trl.settings import TRL_GROUPS
from batchbridge_trl.tables import settings_of

__all__ = ["RULES", "TrlFacts", "check", "defects", "facts_of"]

RULES = (*validated.RULES, *later.RULES, *rollouts.RULES, *steps.RULES, *ignored.RULES, *retired.RETIRED)
"""Every rule and known defect."""
MANY_SETTINGS = "BB-TRL-075"
"""The rule about any of many settings: it points at those that someone set."""


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its version or sizes are unknown. Settings that were not given are
    shown with their defaults."""
    facts = facts_of(reading)
    if facts is None:
        return []
    rows = settings_of(TRL_GROUPS, facts.version)

    def where(keys: tuple[str, ...]) -> tuple[Where, ...]:
        known = [key for key in keys if key not in rows or not rows[key].fixed]
        return reading.where(*(key for key in known if key in reading.given or reading.native.get(key) is not None))

    found = rule_table.checked(reading.framework, RULES, facts, facts.version, where)
    return [
        _about(uncarried(facts), finding, reading) if finding.code == MANY_SETTINGS else finding for finding in found
    ]


def _about(keys: Sequence[str], finding: Finding, reading: Reading) -> Finding:
    """A finding about `keys` and what else someone set, of the many settings that its rule is about."""
    return replace(finding, where=tuple(one for one in finding.where if one.key in (*keys, *reading.given)))


def defects(facts: TrlFacts) -> tuple[Defect, ...]:
    """The rows that apply, that TRL itself never reports, and that change what is trained."""
    return rule_table.defects(RULES, facts, facts.version)
