"""The page of a rule: what it is about, when its framework notices, in which versions, a configuration that breaks it.

Only the title and the reason are written by hand (`titles.json`): the rows are the adapters' own, the configuration
comes from their tests, and what is wrong with it is read when the page is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from batchbridge.contract import plugins
from batchbridge.contract.error_text import RuleRow, RuleTitle
from batchbridge.contract.reading import Reading
from batchbridge.meaning.findings import Finding, Phase
from batchbridge.reading import read as reader
from batchbridge.reading.problems import PROBLEMS, PROBLEMS_OF_PLUGINS
from batchbridge.rules import core_rules

ExampleSettings = Mapping[str, Any]
"""A configuration as data: `values`, `argv` or the text of a `program`, `version`, and `world_size` and `dataset_size`
where they are needed."""
EVERY_FRAMEWORK = "every framework"
"""The framework of the codes that are no framework's own."""
_PROBLEMS = {**PROBLEMS, **PROBLEMS_OF_PLUGINS}
_CORE = {row.code: row for row in core_rules.RULES}
_UNTITLED = RuleTitle("", "")


@dataclass(frozen=True, kw_only=True)
class RulePage:
    """A rule: its framework, its title, why it matters, its kind ("error", "undecided", "warning" or "note"), when the
    framework notices, its rows (none of a rule about reading), and the smallest configuration that breaks it, with the
    finding that says so. Of a rule that holds for every run of its kind, `explain`'s words are the summary; of a
    problem of what was given there is nothing else, and no phase. title and why are empty where the adapter has no
    `titles`."""

    code: str
    framework: str
    title: str
    why: str
    kind: str
    phase: Phase | None
    rows: tuple[RuleRow, ...] = ()
    example: ExampleSettings | None = None
    finding: Finding | None = None
    summary: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "code": self.code,
            "framework": self.framework,
            "title": self.title,
            "why": self.why,
            "kind": self.kind,
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
    title, why = plugins.title_of(code, framework or "") or _UNTITLED
    if framework is not None:
        return _page(code, framework, title, why)
    if (said := _PROBLEMS.get(code)) is not None:
        made = RulePage(code=code, framework=EVERY_FRAMEWORK, title=title, why=why, kind=_kind(said), phase=None)
        return replace(made, summary=said)
    if (row := _CORE.get(code)) is not None:
        kind, phase = row.severity, row.phase
        return RulePage(code=code, framework=EVERY_FRAMEWORK, title=title, why=why, kind=kind, phase=phase)
    return None


def known_codes() -> list[str]:
    """The code of every page."""
    return sorted({*known_rules(), *_PROBLEMS, *_CORE})


def known_rules() -> dict[str, str]:
    """Code of every rule that has an example or a row to its framework. An adapter built upon another one has that
    one's rules."""
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


def _kind(said: str) -> str:
    """The kind of a problem, which stands at the end of its words; that of an error is not said."""
    found = re.search(r"\((?:a |an )?(undecided|warning|note)[^()]*\)$", said)
    return found[1] if found else "error"


def _page(code: str, framework: str, title: str, why: str) -> RulePage:
    adapter = plugins.adapters()[framework]
    example = adapter.examples().get(code)
    rows = tuple(row for row in plugins.rows(adapter) if row.code == code)
    kind, phase = (rows[0].severity, rows[0].phase) if rows else ("error", None)
    page = RulePage(code=code, framework=framework, title=title, why=why, kind=kind, phase=phase, rows=rows)
    if reason := next((reason for row in rows if (reason := getattr(row, "retired", ""))), ""):
        return replace(page, summary=f"retired, and its code is not used again; {reason}")
    if example is None:
        return page
    page = replace(page, example=example)
    said = broken_by(read_example(framework, example)).get(code, "")
    if isinstance(said, str):
        return replace(page, summary=said)
    kind = "undecided" if said.undecided else said.severity
    return replace(page, finding=said, summary=said.message, kind=kind, phase=said.phase)
