"""Open-Instruct's own checks, and what its scripts do silently, as tables.

Each row: code, what must hold, severity, when the script itself notices, the scripts and checkouts that it holds in,
and the source. Codes are stable; a number is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchbridge import Finding, Reading, Where
from batchbridge.kit import Defect, rule_table
from batchbridge_open_instruct.rules.grpo_refused import GRPO_REFUSED
from batchbridge_open_instruct.rules.grpo_silent import GRPO_SILENT
from batchbridge_open_instruct.rules.ppo import PPO_REFUSED, PPO_SILENT
from batchbridge_open_instruct.rules.row import OpenInstructFacts, OpenInstructRule

RULES: tuple[OpenInstructRule, ...] = (*GRPO_REFUSED, *PPO_REFUSED, *GRPO_SILENT, *PPO_SILENT)


def check(reading: Reading) -> Sequence[Finding]:
    """The findings of every row on this reading, and of plugins' rows; none while a setting could not be read."""
    facts = getattr(reading, "run", None)
    if not isinstance(facts, OpenInstructFacts):
        return []

    def where(keys: tuple[str, ...]) -> tuple[Where, ...]:
        return reading.where(*keys)

    own = rule_table.findings(RULES, facts, facts.checkout, where)
    added = rule_table.checked(reading.framework, (), facts, facts.checkout, where)
    return [*(replace(one, source=_source(facts, one)) for one in own), *added]


def defects(facts: OpenInstructFacts) -> tuple[Defect, ...]:
    """The rows that apply and are defects of the script."""
    found = rule_table.defects(RULES, facts, facts.checkout)
    return tuple(replace(one, source=_source(facts, one)) for one in found)


def _source(facts: OpenInstructFacts, found: Finding | Defect) -> str:
    return f"open-instruct {facts.checkout}: {found.source}"
