"""OpenRLHF's rules and known defects, in three tables: what its parser refuses (`rules_parser`), what it notices later
(`rules_late`), and what it never notices (`rules_silent`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchbridge.adapter import Defect, Reading
from batchbridge.findings import Finding, Where
from batchbridge_openrlhf.facts import Facts, Rule
from batchbridge_openrlhf.options import holds, names_of
from batchbridge_openrlhf.rules_late import LATE_RULES
from batchbridge_openrlhf.rules_parser import PARSER_RULES
from batchbridge_openrlhf.rules_silent import SILENT_RULES
from batchbridge_openrlhf.sizes import sizes_of

RULES: tuple[Rule, ...] = (*PARSER_RULES, *LATE_RULES, *SILENT_RULES)
"""Rows in the order in which OpenRLHF itself would come to them."""


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its version or sizes are unknown. Where the parser takes a value
    that nothing else can (not a number, say), its own rules alone."""
    decided = facts_of(reading)
    facts = decided or _parsed(reading)
    if facts is None:
        return []
    given: Mapping[str, Where] = getattr(reading, "given", {})
    return [
        Finding(
            rule.code,
            rule.severity,
            rule.phase,
            message,
            where=tuple(_where(identity, facts, given) for identity in rule.keys if identity in facts.names),
            fixes=rule.fixes(facts),
            native=rule.native,
            source=rule.source,
        )
        for rule, message in _broken(facts, RULES if decided else PARSER_RULES)
    ]


def defects(facts: Facts) -> tuple[Defect, ...]:
    """The broken rows that OpenRLHF itself never reports, and that change what is trained."""
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source)
        for rule, message in _broken(facts)
        if rule.phase == "never" and rule.severity != "note"
    )


def facts_of(reading: Reading) -> Facts | None:
    """The facts of a reading; None while they are unknown, or a default stands where a value could not be read."""
    return _parsed(reading) if getattr(reading, "decided", True) else None


def _parsed(reading: Reading) -> Facts | None:
    settings: Mapping[str, Any] = getattr(reading, "settings", {})
    version = reading.framework_version
    if version is None or not settings or not getattr(reading, "parsed", True):
        return None
    sizes = sizes_of(settings, version, getattr(reading, "asked_world", None))
    if sizes is None:
        return None
    return Facts(
        settings,
        sizes,
        reading.dataset_size,
        version,
        names_of(version),
        whole=getattr(reading, "whole", False),
        given=frozenset(getattr(reading, "given", ())),
    )


def _broken(facts: Facts, rules: Sequence[Rule] = RULES) -> list[tuple[Rule, str]]:
    return [
        (rule, message)
        for rule in rules
        if holds(rule.versions, facts.version)
        and (facts.sizes.positive or not rule.positive_sizes)
        and (message := rule.test(facts)) is not None
    ]


def _where(identity: str, facts: Facts, given: Mapping[str, Where]) -> Where:
    value = facts[identity]
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return given.get(identity) or Where(facts.name(identity), shown)
