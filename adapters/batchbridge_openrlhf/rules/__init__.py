"""OpenRLHF's rules and known defects, in tables: what its parser refuses (`parser`), what it notices later (`late` and
`late_sizes`), and what it never notices (`silent_steps` and `silent`)."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Finding, Reading, Where
from batchbridge.kit import Defect, rule_table
from batchbridge_openrlhf.facts import OpenRlhfFacts, OpenRlhfRule
from batchbridge_openrlhf.rules import late, late_sizes, parser, silent, silent_steps

RULES = (*parser.RULES, *late_sizes.RULES, *late.RULES, *silent_steps.RULES, *silent.RULES)
"""Rows in the order in which OpenRLHF itself would come to them."""


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its version or sizes are unknown. Where the parser takes a value
    that nothing else can (not a number, say), its own rules alone."""
    facts: OpenRlhfFacts | None = getattr(reading, "run", None)
    if facts is None:
        return []

    def where(identities: tuple[str, ...]) -> tuple[Where, ...]:
        return tuple(_where(identity, facts, reading.given) for identity in identities if identity in facts.names)

    if facts.decided and facts.sizes.positive:
        return rule_table.checked(reading.framework, RULES, facts, facts.version, where)
    return rule_table.findings(_testable(facts) if facts.decided else parser.RULES, facts, facts.version, where)


def defects(facts: OpenRlhfFacts) -> tuple[Defect, ...]:
    """The broken rows that OpenRLHF itself never reports, and that change what is trained."""
    return rule_table.defects(_testable(facts), facts, facts.version)


def _testable(facts: OpenRlhfFacts) -> tuple[OpenRlhfRule, ...]:
    """The rows that can be asked: most divide by sizes."""
    if facts.sizes.positive:
        return RULES
    return (*parser.RULES, *(row for row in late_sizes.RULES if row.code == late_sizes.BELOW_ONE))


def _where(identity: str, facts: OpenRlhfFacts, given: Mapping[str, Where]) -> Where:
    value = facts[identity]
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return given.get(identity) or Where(facts.name(identity), shown)
