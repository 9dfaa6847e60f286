"""Reported configurations come out as reported; where they do not, the reason is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from judging import answer, cases, page, readings, said

from batchbridge.diagnosis import doctor, known_texts

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "reported_cases.yaml"
BY_ID = {case["id"]: case for case in cases()}
READ = {name: case for name, case in BY_ID.items() if "read" in case}
READINGS = [(name, str(version)) for name, case in READ.items() for version in case["read"]["versions"]]
NUMBERS = [(name, version, number) for name, version in READINGS for number in READ[name]["expect"].get("answers", {})]
PASTED = [name for name, case in BY_ID.items() if "doctor" in case]
OUTCOMES = {"valid": "valid", "error": "invalid", "silent-wrong": "valid"}
"""Our verdict for a told outcome; what is wrong silently has a finding besides."""


def test_a_case_is_read_or_the_disagreement_has_a_reason() -> None:
    for name, case in BY_ID.items():
        assert ("read" in case and "expect" in case) != bool(case.get("disagreement", "").strip()), name


@pytest.mark.parametrize(("name", "version"), READINGS)
def test_the_outcome_is_the_reported_one(name: str, version: str) -> None:
    case = READ[name]
    reading = readings(case)[version]
    assert case["expect"]["verdict"] == OUTCOMES[case["told"]["outcome"]]
    assert reading.verdict == case["expect"]["verdict"], [f"{f.code} {f.message}" for f in reading.findings]


@pytest.mark.parametrize(("name", "version"), [each for each in READINGS if "code" in READ[each[0]]["expect"]])
def test_the_rule_that_was_told_says_it_at_the_phase_that_was_told(name: str, version: str) -> None:
    case = READ[name]
    finding = said(case, readings(case)[version])
    assert finding is not None
    assert (finding.severity == "error") == (case["told"]["outcome"] == "error")
    assert finding.phase == case["expect"]["phase"]
    assert case["expect"].get("native", "") in (finding.native or "")


@pytest.mark.parametrize("name", [name for name, case in READ.items() if case["told"]["outcome"] == "error"])
def test_nothing_else_is_an_error(name: str) -> None:
    """But what follows from the same numbers: a configuration with another error would be invalid for that one."""
    case = READ[name]
    also = set(case["expect"].get("also", ()))
    for version, reading in readings(case).items():
        errors = {finding.code for finding in reading.findings if finding.severity == "error"}
        assert errors == {case["expect"]["code"], *also}, version


@pytest.mark.parametrize(("name", "version", "number"), NUMBERS)
def test_a_told_number_comes_out(name: str, version: str, number: str) -> None:
    case = READ[name]
    told: Any = case["told"]["numbers"][number]
    found = answer(case, version, case["expect"]["answers"][number])
    assert found == ([told] if isinstance(found, list) and not isinstance(told, list) else told)


@pytest.mark.parametrize("name", READ)
def test_every_told_number_is_answered(name: str) -> None:
    case = READ[name]
    assert set(case["expect"].get("answers", {})) == set(case["told"].get("numbers", {}))


@pytest.mark.parametrize("name", PASTED)
def test_doctor_knows_the_told_text(name: str) -> None:
    case = BY_ID[name]
    assert [found.text.name for found in doctor(case["told"]["message"], texts=known_texts())] == [case["doctor"]]


def test_the_page_is_what_the_adapters_say(repository: Path) -> None:
    assert (repository / "docs" / "reported_cases.md").read_text(encoding="utf-8") == page()


@pytest.mark.shared
def test_every_case_of_the_corpus_is_here_with_its_facts() -> None:
    if not CORPUS.is_file():
        pytest.skip("../shared/corpus is no part of this repository")
    corpus = {case["id"]: case for case in yaml.safe_load(CORPUS.read_text(encoding="utf-8"))["cases"]}
    assert list(corpus) == list(BY_ID)
    for name, case in corpus.items():
        told = BY_ID[name]["told"]
        expected = case["expected"]
        assert told["framework"] == case["framework"], name
        assert told["version"] == case["version"], name
        assert told["world_size"] == case["train_world_size"], name
        assert told["settings"] == case["config"], name
        assert told["outcome"] == expected["outcome"], name
        assert told.get("message") == expected.get("message_contains"), name
        assert told.get("numbers") == case.get("derived"), name
        assert told["status"] == case["status"], name
        if "/" in case["source"]:  # others are no addresses
            assert told["source"] == case["source"], name


def test_the_story_of_the_readme_is_a_reported_case_that_comes_out_so() -> None:
    text = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    story = text[text.index("And a size that does not divide") : text.index("`check` says so before")]
    (told,) = [case for case in READ.values() if f"({case['told']['source']})" in story]
    ((number, (value,)),) = told["told"]["numbers"].items()
    key = number.removeprefix("valid_")
    for reading in readings(told).values():
        finding = said(told, reading)
        assert finding is not None
        assert {key: value} in [fix.changes for fix in finding.fixes]
    assert {reading.verdict for reading in readings(told, {key: value}).values()} == {"valid"}
