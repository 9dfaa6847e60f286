"""A Chinese page and its English one: the same numbers, commands, blocks and links; and each leads to the other."""

from __future__ import annotations

import posixpath
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import make_chinese  # noqa: E402  # a script, beside the pages

PAIRS = make_chinese.pairs()
LINK = re.compile(r"!?\[(?:[^\]]|\n)*?\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
SWITCHED = "> [English]({there}) | 中文"


def prose(text: str) -> str:
    """A page without its blocks but for those whose words are its language's."""
    return make_chinese.BLOCK.sub(lambda one: one[0] if one["script"] == make_chinese.OWN_WORDS else "", text)


def links(page: Path, text: str) -> Counter[str]:
    """The targets of a page's links, from the root; a Chinese page counts as its English one, and links between the two
    do not count. An address stays as it is."""
    folder, english = page.relative_to(ROOT).parent.as_posix(), {**{one: one for one in PAIRS.values()}, **PAIRS}
    found: Counter[str] = Counter()
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            found[target] += 1
            continue
        path, _, anchor = target.partition("#")
        place = ROOT / posixpath.normpath(posixpath.join(folder, path)) if path else page
        place = english.get(place, place)
        if place.relative_to(ROOT).as_posix() == "docs/zh/index.md":
            place = ROOT / "docs/index.md"
        if place != english[page]:
            found[f"{place.relative_to(ROOT).as_posix()}{f'#{anchor}' if anchor else ''}"] += 1
    return found


def numbers(page: Path, text: str) -> Counter[str]:
    """The numbers of a page's prose, outside of code and links; those of a list's items do not count."""
    bare = re.sub(r"(?m)^\d+\. ", "", CODE.sub("", LINK.sub(lambda one: one[0].replace(one[1], ""), prose(text))))
    return Counter(re.findall(r"\d(?:[\d.,/]*\d)?", bare))


def code(page: Path, text: str) -> Counter[str]:
    return Counter(" ".join(one.split()) for one in CODE.findall(prose(text)))


def headings(page: Path, text: str) -> Counter[str]:
    return Counter(re.findall(r"(?m)^(#+) ", prose(text)))


SAME: dict[str, Callable[[Path, str], Counter[str]]] = {
    "numbers": numbers,
    "code": code,
    "links": links,
    "headings": headings,
}


def parted(chinese: Path, told: str, english: Path, meant: str) -> Iterator[str]:
    """The differences between a page in Chinese and in English, in words."""
    for what, of in SAME.items():
        ours, theirs = of(chinese, told), of(english, meant)
        yield from (f"{what}: only in Chinese: {one}" for one in ours - theirs)
        yield from (f"{what}: only in English: {one}" for one in theirs - ours)
    if make_chinese.copied(told, meant) != told:
        yield "a block of code is another: python docs/make_chinese.py"


@pytest.mark.parametrize("chinese", PAIRS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_both_languages_have_the_same_numbers_commands_and_links(chinese: Path) -> None:
    english = PAIRS[chinese]
    told, meant = chinese.read_text(encoding="utf-8"), english.read_text(encoding="utf-8")
    assert list(parted(chinese, told, english, meant)) == []


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("README.zh.md", "2.13.0，来自", "2.12.0，来自"),
        ("README.zh.md", '`mode="verify"`', '`mode="check"`'),
        ("README.zh.md", "pip install batchbridge", "pip install bridge"),
        ("README.zh.md", "docs/zh/glossary.md", "docs/zh/concepts.md"),
        ("README.zh.md", "#verifying-a-run", "#verifying"),
        ("docs/zh/concepts.md", "1/22", "1/21"),
        ("docs/zh/concepts.md", "## 准确的定义\n", ""),
        ("docs/zh/tutorials/two_runs.md", "退出码 0", "退出码 1"),
    ],
)
def test_what_one_language_alone_changes_is_found(page: str, before: str, after: str) -> None:
    chinese = ROOT / page
    text = chinese.read_text(encoding="utf-8")
    assert text.count(before) >= 1
    english = PAIRS[chinese]
    assert list(parted(chinese, text.replace(before, after, 1), english, english.read_text(encoding="utf-8")))


def test_a_block_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match="the English page has 1 blocks, the Chinese one 0"):
        make_chinese.copied("没有\n", "```\nx\n```\n")


def test_the_two_readmes_lead_to_each_other_in_their_first_lines() -> None:
    for page, other in (("README.md", "](README.zh.md)"), ("README.zh.md", "](README.md)")):
        assert any(other in line for line in (ROOT / page).read_text(encoding="utf-8").splitlines()[:5])


def test_the_glossary_has_every_term_in_both_languages() -> None:
    english, chinese = (
        [line.split("|")[1].strip() for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if "|" in line]
        for page in ("docs/glossary.md", "docs/zh/glossary.md")
    )
    assert chinese[2:] == english[2:]
