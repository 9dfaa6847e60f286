"""Open-Instruct's own checks, and what its scripts do silently, as tables.

Each row: code, what must hold, severity, when the script itself notices, the scripts and checkouts that it holds in,
and the source. Codes are stable; a number is never used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from batchbridge import Finding, Reading, Where
from batchbridge.kit import Defect, rule_table
from batchbridge.kit.rule_table import numbers_of
from batchbridge_open_instruct.rules.grpo_refused import GRPO_REFUSED
from batchbridge_open_instruct.rules.grpo_silent import GRPO_SILENT
from batchbridge_open_instruct.rules.ppo import PPO_REFUSED, PPO_SILENT
from batchbridge_open_instruct.rules.row import Facts, Rule
from batchbridge_open_instruct.settings import SCRIPTS

__all__ = ["RULES", "Facts", "Rule", "check", "defects"]

RULES: tuple[Rule, ...] = (*GRPO_REFUSED, *PPO_REFUSED, *GRPO_SILENT, *PPO_SILENT)
assert all(script in SCRIPTS for rule in RULES for script in rule.scripts)


def check(reading: Reading) -> Sequence[Finding]:
    """The findings of every row on this reading, and of plugins' rows; none while a setting could not be read."""
    facts = getattr(reading, "run", None)
    if not isinstance(facts, Facts):
        return []
    added = rule_table.checked(reading.framework, (), facts, facts.checkout, lambda keys: reading.where(*keys))
    return [*_findings(facts, reading.where), *added]


def defects(facts: Facts) -> tuple[Defect, ...]:
    """The rows that apply and are defects of the script."""
    return tuple(
        Defect(code=one.code, summary=one.message, source=one.source or "", numbers=numbers_of(one.message))
        for one in _findings(facts, lambda *keys: (), of_the_script=True)
    )


def _findings(
    facts: Facts, where: Callable[..., tuple[Where, ...]], *, of_the_script: bool = False
) -> Iterator[Finding]:
    for rule in RULES:
        if not rule.holds(facts.native, facts.checkout) or (of_the_script and not rule.defect):
            continue
        problem = rule.test(facts)
        if problem is not None:
            yield Finding(
                rule.code,
                rule.severity,
                rule.phase,
                problem.message,
                where(*problem.keys),
                problem.fixes,
                native=rule.native,
                source=f"open-instruct {facts.checkout}: {rule.source}",
            )
