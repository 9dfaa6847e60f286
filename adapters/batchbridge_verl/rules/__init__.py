"""verl's own rules, and what it does silently: tables, each row with phase, source and ways out.

Phases: `config` is `validate_config` and the dataclasses that it builds, in the driver before any worker, in verl's own
order (`validated`); `construction` the trainer, `worker_start` the workers, `first_rollout` and `optimizer_step`
assertions deep in a run (`later`); `never` what nothing reports (`silent`).

Codes are stable, and a number is never used again; 001 to 011 belong to reading, see `config` and `given`.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.adapter import Defect, Reading
from batchbridge.findings import Finding, Where
from batchbridge_verl.rules.later import LATER
from batchbridge_verl.rules.row import Rule
from batchbridge_verl.rules.silent import SILENT
from batchbridge_verl.rules.validated import VALIDATED
from batchbridge_verl.run import Run
from batchbridge_verl.settings import holds

__all__ = ["RULES", "Rule", "check", "defects"]

RULES = (*VALIDATED, *LATER, *SILENT)


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its run is unknown."""
    run = getattr(reading, "run", None)
    if not isinstance(run, Run):
        return []
    given: Mapping[str, Where] = getattr(reading, "given", {})
    return [
        _finding(rule, message, run, given)
        for rule in RULES
        if not rule.standing and holds(rule.versions, run.version) and (message := rule.test(run)) is not None
    ]


def defects(run: Run) -> tuple[Defect, ...]:
    """The rows that apply, that verl itself never reports, and that change what is trained."""
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source)
        for rule in RULES
        if rule.phase == "never" and (rule.severity == "warning" or rule.standing) and holds(rule.versions, run.version)
        if (message := rule.test(run)) is not None
    )


def _finding(rule: Rule, message: str, run: Run, given: Mapping[str, Where]) -> Finding:
    keys = [key for key in rule.keys if key in given or run.native.get(key) is not None] or list(rule.keys[:1])
    return Finding(
        rule.code,
        rule.severity,
        rule.phase,
        message,
        where=tuple(given.get(key) or Where(key, run.native.get(key)) for key in keys),
        fixes=rule.fixes(run),
        native=rule.native,
        source=rule.source,
        undecided=rule.undecided,
    )
