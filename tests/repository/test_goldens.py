"""What `explain`, `check` and `convert` say is what was recorded: a change of it is meant, and looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import goldens
import pytest


def differing(chosen: Iterator[goldens.Golden]) -> list[str]:
    """Sources whose texts are not those of the record, with the subjects."""
    now, before = goldens.digests(chosen), goldens.recorded()
    assert now, "no source was read"
    return [
        f"{name}: {subject}"
        for name, subjects in now.items()
        for subject in sorted({*subjects, *before.get(name, {})})
        if subjects.get(subject) != before.get(name, {}).get(subject)
    ]


ADVICE = (
    "`git stash; python tests/repository/goldens.py --texts F; git stash pop; ... --against F` shows the difference"
)


def test_plain_configurations_are_read_and_converted_as_recorded() -> None:
    assert differing(golden for golden in goldens.sources() if not golden.corpus) == [], ADVICE


@pytest.mark.shared
def test_the_corpus_is_read_and_converted_as_recorded() -> None:
    if not goldens.CORPUS.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    assert differing(golden for golden in goldens.sources() if golden.corpus) == [], ADVICE


def test_the_record_has_no_source_that_is_not_read() -> None:
    if not goldens.CORPUS.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    assert goldens.recorded().keys() == {golden.name for golden in goldens.sources()}


def test_another_word_in_a_text_is_noticed() -> None:
    (plain,) = [golden for golden in goldens.sources(frozenset({"trl"})) if golden.name == "plain/trl/1.16.0"][:1]
    reading = plain.reading()
    other = plain._replace(reading=lambda: dataclasses.replace(reading, framework_version="1.15.0"))
    assert goldens.texts(plain).keys() == goldens.texts(other).keys()
    assert goldens.texts(plain)["explain"] != goldens.texts(other)["explain"]
