"""Rules that a framework's own constructor says, too: each is retired, or docs/house.md says why it stays."""

from __future__ import annotations

import re
from pathlib import Path

from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Source

FIRST_PARTY = ("trl", "verl", "openrlhf", "easyr1", "open_instruct")


def restating(adapter: Adapter) -> set[str]:
    """Codes of rules that are judged by the constructor and name no setting with a canonical field."""
    context = Context(framework_version=adapter.newest_version, world_size=8, dataset_size=1000)
    provenance = adapter.read(Source(values={}), context).provenance
    canonical = {key for origin in provenance.values() for key in origin.keys}
    return {
        row.code
        for row in adapter.rows()
        if row.phase in ("config", "construction") and not row.retired and not canonical & {*row.keys}
    }


def explained(page: str) -> set[str]:
    """Codes in the page's table."""
    part = page.partition("## Rules that a constructor says, too")[2].partition("\n## ")[0]
    return set(re.findall(r"BB-[A-Z0-9]+-\d+", part))


def test_every_rule_that_a_constructor_says_too_is_retired_or_explained(repository: Path) -> None:
    adapters = plugins.adapters()
    found = {code for framework in FIRST_PARTY for code in restating(adapters[framework])}
    assert found
    assert explained((repository / "docs" / "house.md").read_text(encoding="utf-8")) == found


def test_a_rule_without_an_explanation_is_found(repository: Path) -> None:
    page = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    assert "BB-TRL-027" in explained(page)
    assert "BB-TRL-027" not in explained(page.replace("BB-TRL-027, ", ""))
