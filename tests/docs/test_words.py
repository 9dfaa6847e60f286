"""What users read has no words that only the workshop uses: rules, findings, refusals, texts, and the commands' own."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchbridge.contract import plugins
from batchbridge.rule_page import known_rules, rule

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")
WORKSHOP = {
    r"\bemulated\b": "how somebody found out",
    r"\bexp_(agg|order|engine)\w*|\bgradcheck\d*": "the name of an experiment",
    r"\bmeasured: ": "how somebody found out",
    r"\bnoticed never\b": "never reports it",
    r"\b(is|are) no (setting|option)s? of\b": "X has no setting Y",
    r", say\b(?! (why|what|how|so|it|--))": "for example",
    r"\bname the version:": "name the version, for example --framework-version X",
    r"\bseams?\b": "code that BatchBridge patches",
    r"\b(runs|trainers?|start|program|\w+\.py)\b[^.;:]* (is|are|was) (not )?followed\b(?! by)": "`run` works with it",
    r"\bfollows (no|such a|a) run": "`run` works with it",
    r"\bcarried\.": "the field's own name",
    r"\bnative\.defect\b": "a known defect",
    r"\bunit: kind\b": "nothing",
    r"\btold here\b": "taken here",
    r"\bclock\b": "the learning rate's schedule",
}
"""A pattern that no text for users has, and what to write for it."""
WORDS = re.compile("|".join(f"(?:{pattern})" for pattern in WORKSHOP))
RUNNING = re.compile(
    r"engine|legacy|driver|trainer\w*|feed|observe|watching|epochs|rows|shares|launched|composed\w*|step_driver"
)
"""Modules of an adapter that act on a run, and speak when it breaks."""
CANONICAL = ("writing.py", "writing_carried.py", "new_adapter.py")
"""They name canonical fields by their paths: those that cannot be written, and those of an adapter to be made."""


def of_workshop(text: str | None) -> bool:
    return bool(WORDS.search(text or ""))


def spoken(framework: str) -> Iterator[tuple[str, str]]:
    """(whose, text) of every row, every refusal, and every text that `doctor` knows."""
    adapter = plugins.adapters()[framework]
    for row in plugins.rows(adapter):
        yield row.code, row.source
        yield row.code, row.native if isinstance(row.native, str) else ""
    for text in adapter.error_texts():
        yield from (
            (text.name, said) for said in (text.rule, text.meaning, text.source, *(a.question for a in text.asks))
        )
    for refusal in importlib.import_module(f"batchbridge_{framework}.refusals").REFUSALS:
        yield from ((refusal.name, said) for said in (refusal.reason, refusal.remedy))


def found_in_pages() -> Iterator[tuple[str, str]]:
    """(code, text) of what every rule says of its example."""
    for code in known_rules():
        page = rule(code)
        assert page is not None
        yield code, page.summary
        if (finding := page.finding) is not None:
            yield from ((code, said or "") for said in (finding.message, finding.native, finding.source))
            yield from ((code, fix.text) for fix in finding.fixes)


def prose(file: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of the sentences in a module's code: strings with a blank in them; docstrings are nobody's."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield (
                f"{file.name}:{node.lineno}",
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield f"{file.name}:{node.lineno}", node.value


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rules_refusals_and_texts_have_no_words_of_the_workshop(framework: str) -> None:
    said = list(spoken(framework))
    assert len(said) > 80
    assert [(whose, text) for whose, text in said if of_workshop(text)] == []


def test_findings_have_no_words_of_the_workshop() -> None:
    said = list(found_in_pages())
    assert len(said) > 1000
    assert [(whose, text) for whose, text in said if of_workshop(text)] == []


def test_the_commands_and_the_readers_have_no_words_of_the_workshop() -> None:
    files = [
        file
        for folder in ("src/batchbridge", *(f"adapters/batchbridge_{name}" for name in FRAMEWORKS))
        for file in (ROOT / folder).rglob("*.py")
        if not RUNNING.fullmatch(file.stem) and file.name not in CANONICAL and "testing" not in file.parts
    ]
    assert len(files) > 150
    said = [each for file in files for each in prose(file) if " " in each[1]]
    assert [(place, text) for place, text in said if of_workshop(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "verl 0.6.1 dp_actor.py:434; emulated in exp_agg",
        "torchdata StatefulDataLoader (measured: exp_order2)",
        "EasyR1 dp_actor.py:287 (measured: gradcheck2)",
        "readers disagree; noticed never",
        "x is no setting of trl",
        "name the version: 1.16.0, say",
        "a version or a seam of TRL",
        "whose runs are followed",
        "carried.warmup_steps = -1 is below its minimum",
        "the constant told here is data.max_response_length",
    ],
)
def test_a_word_of_the_workshop_is_noticed(text: str) -> None:
    assert of_workshop(text)


@pytest.mark.parametrize(
    "text",
    [
        "trl has no setting x",
        "another script is followed by a value",
        "the exported value is measured in tokens, and so on",
    ],
)
def test_plain_words_are_none(text: str) -> None:
    assert not of_workshop(text)
