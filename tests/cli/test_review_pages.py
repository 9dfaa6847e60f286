"""Numbers 13 and 14 of the review: the site's pages and their order, words that lost an outsider, the first screen."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from batchbridge.render.rule import page as shown
from batchbridge.rule_page import known_rules, rule

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILT = {"rules/index.md", "api.md"}
"""Pages of the navigation that only the site has; its own test follows their links."""
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
WANTED = [
    "Home",
    "Start",
    "Playground",
    "中文",
    "Tutorials",
    "How-to",
    "Frameworks",
    "Rules",
    "Concepts",
    "Evidence",
    "Plugins",
    "Reference",
]
"""A user's sections in the order in which the review wants them, and the reference behind them."""
LOST = (
    r"Running trainers of \S+ \S+ to \S+ are followed",
    r"\bseams? of\b",
    r"What is told and is not said",
    r"Verdict and first rule named agree on all",
    r"those that keep the meaning first, and its defaults last",
    r"\bis no setting of\b|\bnoticed never\b|\bname the version: \S+, say",
    r"\bunit: kind\b|\bnative\.defect\.",
)
"""The seven phrases of the review's table of texts that nobody outside understands."""


def pages_of(entry: object) -> Iterator[str]:
    """The pages of a part of the navigation, in its order."""
    if isinstance(entry, str):
        yield entry
    for part in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from pages_of(part)


def section(name: str) -> list[str]:
    (found,) = (entry[name] for entry in NAV if name in entry)
    return list(pages_of(found))


def lost(text: str) -> list[str]:
    """The phrases of the table that stand in a page."""
    plain = " ".join(text.split())
    return [phrase for phrase in LOST if re.search(phrase, plain)]


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def works_with() -> str:
    """README's table of what works with what."""
    return readme().partition("<!-- written by docs/make_works_with.py -->")[2].partition("<!-- end -->")[0]


def test_13_the_navigation_begins_at_home_and_is_in_the_order_of_a_users_questions() -> None:
    assert [name for entry in NAV for name in entry] == WANTED
    assert section("Home") == ["index.md"]


def test_13_every_page_of_the_navigation_is_there_and_stands_in_it_once() -> None:
    pages = list(pages_of(NAV))
    assert [page for page in pages if page not in BUILT and not (DOCS / page).is_file()] == []
    assert len(pages) == len(set(pages))


def test_13_every_page_is_in_the_navigation() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in written if not page.startswith("rules/")} | BUILT == set(pages_of(NAV))


@pytest.mark.parametrize(("name", "folder", "least"), [("Tutorials", "tutorials", 4), ("How-to", "howto", 6)])
def test_13_there_are_tutorials_and_how_tos_with_commands_and_what_they_print(
    name: str, folder: str, least: int
) -> None:
    own = [page for page in section(name) if page.startswith(f"{folder}/") and not page.endswith("index.md")]
    assert len(own) >= least
    for page in own:
        assert "```console\n$ batchbridge " in (DOCS / page).read_text(encoding="utf-8"), page


def test_13_evidence_stands_behind_what_a_user_asks_first() -> None:
    for page in ("evidence.md", "equivalence.md", "fuzzing.md", "fuzzing_run.md", "first_five_minutes.md"):
        assert page in section("Evidence")


def test_13_the_phrases_that_lost_an_outsider_are_in_no_page(tmp_path: Path) -> None:
    """The API's page is built for it: it is there by itself only where the site was built before."""
    api = tmp_path / "api.md"
    subprocess.run([sys.executable, "-I", str(DOCS / "make_api.py"), str(api)], check=True)
    pages = (ROOT / "README.md", *DOCS.rglob("*.md"), api)
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    texts |= {code: shown(page) for code in known_rules() if (page := rule(code)) is not None}
    assert len(texts) > 300
    assert [(name, found) for name, text in texts.items() if (found := lost(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "Running trainers of verl 0.8.0 to 0.9.1 are followed",
        "a version or a\nseam of TRL or transformers that is not known",
        "What is told and is not said, with the reason",
        "Verdict and first rule named agree on all",
        "those that keep the meaning first, and its defaults last; in the end each single field",
        "nearest: name the version: 1.16.0, say",
        "policy_lag (unit: kind)",
    ],
)
def test_13_such_a_phrase_would_be_noticed(text: str) -> None:
    assert len(lost(text)) == 1


def test_14_the_light_installation_and_explain_come_before_torch() -> None:
    text = readme()
    light = "\npip install batchbridge  # in a checkout: pip install .\n"
    places = [text.index(words) for words in (light, "$ batchbridge explain ", "PyPI's `torch`", '".[trl]"')]
    assert places == sorted(places)
    before, named = text[: places[0]], text.index("no torch")
    assert "no torch" in before
    assert text.index("torch") == named + len("no ")


def test_14_a_picture_and_both_tables_are_on_the_way() -> None:
    text = readme()
    (alt, picture) = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", text)[0]
    assert "128 in five frameworks" in alt
    assert (ROOT / picture).read_text(encoding="utf-8").startswith("<svg")
    assert text.index(picture) < text.index("## Try it")
    table = works_with()
    for feature in ("FSDP", "ZeRO", "LoRA", "images"):
        assert re.search(rf"^\| [^|]*{feature}[^|]* \|", table, re.MULTILINE), feature


def test_14_what_is_refused_is_said_with_its_name_and_where_it_is_explained() -> None:
    text = readme()
    table = works_with()
    refused = re.findall(r"no: \[(\w+)\]\((docs/\w+\.md)#what-is-refused\)", table)
    assert refused
    for name, page in refused:
        assert name in (ROOT / page).read_text(encoding="utf-8")
    assert '"no" is refused by that name, and `check` says so before anything is started' in text
