"""The page of a rule: what it is about, when its framework notices, in which versions, a configuration that breaks it.

Nothing here is written by hand: the rows are the adapters' own, the configuration comes from their tests, and what is
wrong with it is read when the page is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from batchbridge.contract import plugins
from batchbridge.contract.error_text import RuleRow
from batchbridge.contract.reading import Reading
from batchbridge.meaning.findings import Finding
from batchbridge.reading import read as reader
from batchbridge.reading.problems import PROBLEMS, PROBLEMS_OF_PLUGINS

ExampleSettings = Mapping[str, Any]
"""A configuration as data: `values`, `argv` or the text of a `program`, `version`, and `world_size` and `dataset_size`
where they are needed."""


@dataclass(frozen=True, kw_only=True)
class RulePage:
    """A rule: its framework, its rows (none of a rule about reading), and the smallest configuration that breaks it,
    with the finding that says so. Of a rule that holds for every run of its kind, `explain`'s words are the summary; of
    a problem of what was given there is nothing else."""

    code: str
    framework: str
    rows: tuple[RuleRow, ...]
    example: ExampleSettings | None
    finding: Finding | None
    summary: str

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "code": self.code,
            "framework": self.framework,
            "summary": self.summary,
            "rows": [
                {name: getattr(row, name) for name in ("severity", "phase", "versions", "source")}
                | {"native": row.native if isinstance(row.native, str) else None}
                for row in self.rows
            ],
            "example": self.example,
            "finding": None if self.finding is None else self.finding.to_dict(),
        }


def rule(code: str) -> RulePage | None:
    """The page of a rule, or of a problem of what was given; None where no installed adapter knows the code. `TRL-21`
    is BB-TRL-021."""
    code = code.upper()
    if short := re.fullmatch(r"(?:BB-)?([A-Z]\w*)-(\d{1,3})", code):
        code = f"BB-{short[1]}-{short[2]:0>3}"
    framework = known_rules().get(code)
    if framework is not None:
        return _page(code, framework)
    said = {**PROBLEMS, **PROBLEMS_OF_PLUGINS}.get(code)
    if said is None:
        return None
    return RulePage(code=code, framework="every framework", rows=(), example=None, finding=None, summary=said)


def known_codes() -> list[str]:
    """The code of every page."""
    return sorted({*known_rules(), *PROBLEMS, *PROBLEMS_OF_PLUGINS})


def known_rules() -> dict[str, str]:
    """Code of every rule that has a page to its framework. An adapter built upon another one has that one's rules."""
    found: dict[str, str] = {}
    for framework, adapter in plugins.adapters().items():
        if not adapter.rule_table or "rule_table" in vars(type(adapter)):
            codes = [row.code for row in plugins.rows(adapter)] + list(adapter.examples())
            found |= {code: framework for code in codes if code not in found}
    return dict(sorted(found.items()))


def read_example(framework: str, example: ExampleSettings) -> Reading:
    """A reading of an example, as `batchbridge.read` would give it."""
    source, context = reader.as_read(example)
    return reader.read_source(source, plugins.adapters()[framework], context)


def broken_by(reading: Reading) -> dict[str, Finding | str]:
    """Codes of what a reading breaks: with the finding, or, of what holds for every run of its kind, with the words of
    `explain`."""
    defects = () if reading.behaviour is None else reading.behaviour.defects
    said: dict[str, Finding | str] = {defect.code: defect.summary for defect in defects}
    return said | {finding.code: finding for finding in reversed(reading.findings)}


def _page(code: str, framework: str) -> RulePage:
    adapter = plugins.adapters()[framework]
    example = adapter.examples().get(code)
    rows = tuple(row for row in plugins.rows(adapter) if row.code == code)
    if reason := next((reason for row in rows if (reason := getattr(row, "retired", ""))), ""):
        summary = f"retired, and its code is not used again; {reason}"
        return RulePage(code=code, framework=framework, rows=rows, example=None, finding=None, summary=summary)
    page = RulePage(code=code, framework=framework, rows=rows, example=example, finding=None, summary="")
    if example is None:
        return page
    said = broken_by(read_example(framework, example)).get(code, "")
    if isinstance(said, str):
        return replace(page, summary=said)
    return replace(page, finding=said, summary=said.message)
