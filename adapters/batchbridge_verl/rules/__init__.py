"""verl's own rules, and what it does silently: tables, each row with phase, source and ways out.

Phases: `config` is `validate_config` and the dataclasses that it builds, in the driver before any worker, in verl's own
order (`validated`); `construction` the trainer, `worker_start` the workers, `first_rollout` and `optimizer_step`
assertions deep in a run (`later`, `dispatch`, and `names` that are looked up then); `never` what nothing reports
(`silent`).

Codes are stable, and a number is never used again; 001 to 011 belong to reading, see `config` and `given`.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchbridge import Finding, Reading, Where
from batchbridge.kit import Defect, rule_table
from batchbridge_verl.rules import (
    dispatch,
    fully_async,
    later,
    later_sizes,
    names,
    retired,
    silent,
    silent_steps,
    validated,
)
from batchbridge_verl.rules.row import VerlRule
from batchbridge_verl.run import FULLY_ASYNC, VerlRun, left_open

__all__ = ["RULES", "VALIDATED", "check", "defects"]

VALIDATED = tuple(validated.RULES)
RULES = (
    *VALIDATED,
    *later.RULES,
    *later_sizes.RULES,
    *dispatch.RULES,
    *names.RULES,
    *silent_steps.RULES,
    *silent.RULES,
    *fully_async.RULES,
    *retired.RETIRED,
)


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its run is unknown."""
    run = getattr(reading, "run", None)
    if not isinstance(run, VerlRun):
        return []

    def where(keys: tuple[str, ...]) -> tuple[Where, ...]:
        said = [key for key in keys if key in reading.given or run.native.get(key) is not None]
        return reading.where(*(said or keys[:1]))

    found = rule_table.checked(reading.framework, _rows(run), run, run.version, where)
    return [left_open(one) if run.file_alone and validated.left_out(one.code, run) else one for one in found]


def _rows(run: VerlRun) -> Sequence[VerlRule]:
    """Those that were held against the program."""
    return fully_async.RULES if run.entry == FULLY_ASYNC else RULES


def defects(run: VerlRun) -> tuple[Defect, ...]:
    """The rows that apply, that verl itself never reports, and that change what is trained."""
    return rule_table.defects(_rows(run), run, run.version)
