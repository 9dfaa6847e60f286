"""Words that only we would understand do not stand in the documentation, and README.md stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN_FROM_TABLES = ("docs/api.md", "docs/rules/")
"""Their words are the docstrings' and the findings'."""
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
    if not page.relative_to(ROOT).as_posix().startswith(WRITTEN_FROM_TABLES)
]
BANNED = {
    r"\b(?:is|are|were) followed\b(?! by)": "say what works: `batchbridge run` works with ...",
    r"(?<!`)\bseams?\b": "code that BatchBridge patches",
    r"\bis no setting of\b": "verl has no setting x",
    r"\bnoticed never\b": "never reported",
    r"nearest: name the version": "name the version, for example 1.16.0",
    r"unit: kind": "leave it out",
    r"[Vv]erdict and first rule": "agree on the verdict and on the first error",
    r"\btold and is not said\b": "reports that we could not reproduce",
}
OTHERWISE_MEANT = {"docs/cli.md": ("tags are not followed", "Will its run be followed")}
"""Of files and scripts, where "followed" is the ordinary word."""


def found_in(text: str) -> list[str]:
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)  # what a program prints is the program's
    prose = re.sub(r"(?s)<!-- written by docs/make_refusals.py -->.*?<!-- end -->", "", prose)  # and so are its reasons
    joined = " ".join(prose.split())
    return [match[0] for banned in BANNED for match in re.finditer(banned, joined)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_says_it_in_words_that_everybody_knows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for allowed in OTHERWISE_MEANT.get(page.relative_to(ROOT).as_posix(), ()):
        text = text.replace(allowed, "")
    assert found_in(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Trainers of verl 0.8.0 to 0.9.1 are\nfollowed.",
        "a version or a seam of TRL",
        "packing is no setting of trl",
        "natively: nothing; noticed never",
    ],
)
def test_such_words_would_be_found(text: str) -> None:
    assert len(found_in(text)) == 1


def test_ordinary_words_are_not() -> None:
    assert found_in("the digest, which is followed by another; the name `seam`; a setting of verl") == []


def test_the_readme_is_read_to_its_end() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_word_of_the_glossary_that_is_asked_for_is_there() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for word in ("rollout", "optimizer step", "micro-batch", "scope", "clock", "plan", "spec", "ledger", "drift"):
        assert f"\n| {word} |" in text
