"""The page of `allow`'s names against the code that accepts them."""

from __future__ import annotations

import importlib
from pathlib import Path

from batchbridge.kit.allowing import ON_EVERY_FRAMEWORK
from batchbridge.kit.refusals import RefusalRow

PAGE = Path(__file__).parents[2] / "docs" / "allow.md"
WORDS = {"TRL": "trl", "verl": "verl", "OpenRLHF": "openrlhf", "EasyR1": "easyr1", "Open-Instruct": "open_instruct"}


def allowable(framework: str) -> set[str]:
    rows: list[RefusalRow] = importlib.import_module(f"batchbridge_{framework}.refusals").REFUSALS
    return {row.name for row in rows if row.allowable}


def told() -> list[tuple[str, str, str]]:
    lines = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(line[0][2:], line[1], line[3].removesuffix(" |")) for line in lines[1:]]


def test_every_name_stands_there_once_with_its_frameworks_and_what_is_still_held() -> None:
    rows = told()
    assert len({name for name, _, _ in rows}) == len(rows)
    assert {name for name, where, _ in rows if where == "all"} == ON_EVERY_FRAMEWORK
    by_framework = {
        framework: {name for name, where, _ in rows if word in where.split(", ")} for word, framework in WORDS.items()
    }
    assert by_framework == {framework: allowable(framework) for framework in WORDS.values()}
    assert all(held for *_, held in rows)
