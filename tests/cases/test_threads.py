"""Threads of users, asked with our own commands as their reporters would ask (`threads.yaml`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchbridge.cli.main import main

FILE = Path(__file__).with_name("threads.yaml")
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "reported_cases_3.yaml"
CASES: dict[str, dict[str, Any]] = {one["id"]: one for one in yaml.safe_load(FILE.read_text(encoding="utf-8"))["cases"]}
ASKED = [(name, place) for name, case in CASES.items() for place in range(len(case["asks"]))]


@pytest.mark.parametrize(("name", "place"), ASKED)
def test_what_is_asked_is_answered_as_the_thread_ended(
    name: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    asked = case["asks"][place]
    for file, text in case["files"].items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = main(shlex.split(asked["run"]))
    out, err = capsys.readouterr()
    said = " ".join((out + err).split())
    assert code == asked["exit"], said
    assert [words for words in asked.get("says", ()) if words not in said] == [], said
    assert [words for words in asked.get("never", ()) if words in said] == [], said


@pytest.mark.parametrize("name", CASES)
def test_a_thread_has_a_source_and_a_truth_and_is_asked_or_says_why_not(name: str) -> None:
    case = CASES[name]
    assert case["source"].startswith(("http://", "https://"))
    assert case["question"]
    assert case["truth"]
    assert bool(case["asks"]) != bool(case.get("not_asked", ""))


@pytest.mark.shared
def test_every_thread_of_the_corpus_is_here() -> None:
    if not CORPUS.is_file():
        pytest.skip("../shared/corpus is no part of this repository")
    corpus = yaml.safe_load(CORPUS.read_text(encoding="utf-8"))["cases"]
    assert [(case["id"], case["source"]) for case in corpus] == [
        (name, case["source"]) for name, case in CASES.items() if name.startswith("rep-")
    ]
