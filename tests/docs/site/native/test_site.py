"""The built site: nothing in it is fetched from elsewhere, and the build fails where a link or an anchor is wrong.

`nox -s docs` builds it, and names its folder in BATCHBRIDGE_SITE.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SITE = Path(os.environ["BATCHBRIDGE_SITE"])
PAGES = sorted(SITE.rglob("*.html"))
NO_REQUEST = {"canonical", "alternate", "edit", "license", "author", "next", "prev"}
"""Relations of <link> that a browser does not fetch."""


class Requests(HTMLParser):
    """What a page makes a browser fetch, and its classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.classes |= set(said.get("class", "").split())
        if tag == "link" and not NO_REQUEST & set(said.get("rel", "").split()):
            self.fetched.append(said.get("href", ""))
        if tag != "a":
            self.fetched += [said[name] for name in ("src", "srcset", "data", "poster", "action") if name in said]
        self.fetched += re.findall(r"url\((.*?)\)", said.get("style", ""))


def requests_of(text: str) -> Requests:
    found = Requests()
    found.feed(text)
    return found


def outside(addresses: list[str]) -> list[str]:
    return [one for one in addresses if re.match(r"['\"]?\s*(?:[a-z]+:)?//", one, re.IGNORECASE)]


def test_the_site_is_there() -> None:
    assert len(PAGES) > 350
    assert (SITE / "index.html").is_file()


def test_no_page_fetches_anything_from_elsewhere() -> None:
    for page in PAGES:
        found = requests_of(page.read_text(encoding="utf-8"))
        assert outside(found.fetched) == [], page
        assert "mermaid" not in found.classes, f"{page}: the theme fetches mermaid where a page has a diagram of it"
        assert "md-source" not in found.classes, f"{page}: the theme asks GitHub about a repository that is named"


CHINESE = [page for page in PAGES if page.relative_to(SITE).parts[0] == "zh"]


def test_every_page_says_its_language() -> None:
    assert len(CHINESE) > 8
    for page in PAGES:
        (language,) = re.findall(r'<html lang="(\w+)"', page.read_text(encoding="utf-8"))
        assert language == ("zh" if page in CHINESE else "en"), page


def test_a_page_in_two_languages_leads_from_each_to_the_other_and_no_other_page_does() -> None:
    pairs = {page: SITE / page.relative_to(SITE / "zh") for page in CHINESE}
    for page in PAGES:
        switch = re.findall(r'<a href="([^"]*)" hreflang="(\w+)"', page.read_text(encoding="utf-8"))
        both = next(((english, chinese) for chinese, english in pairs.items() if page in (chinese, english)), None)
        found = {language: (page.parent / link / "index.html").resolve() for link, language in switch}
        wanted = {} if both is None else {"en": both[0].resolve(), "zh": both[1].resolve()}
        assert found == wanted, page


def test_the_search_cuts_chinese_into_characters_and_english_into_words() -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    cut = re.compile(index["config"]["separator"])
    words = [one for one in re.split(cut, "\u5fae\u6279\u6b21 of 8\u4e2a\uff1aa-b, num_generations") if one]
    assert words == ["\u5fae", "\u6279", "\u6b21", "of", "8", "\u4e2a", "a", "b,", "num_generations"]


def test_no_style_sheet_does() -> None:
    sheets = list(SITE.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        assert outside(re.findall(r"url\((.*?)\)", text) + re.findall(r"@import\s+(\S+)", text)) == [], sheet


@pytest.mark.parametrize(
    "tampered",
    [
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<script src="//cdn.example/x.js"></script>',
        '<img src="https://example/x.png">',
        '<p style="background: url(https://example/x.png)">',
    ],
)
def test_a_request_would_be_seen(tampered: str) -> None:
    assert len(outside(requests_of(tampered).fetched)) == 1


def test_a_link_to_another_site_is_no_request() -> None:
    assert outside(requests_of('<a href="https://example">x</a><link rel="canonical" href="https://e">').fetched) == []


@pytest.mark.parametrize("link", ["nowhere.md", "other.md#nowhere"])
def test_the_build_fails_at_a_wrong_link_or_anchor(link: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    validation = settings[settings.index("\nvalidation:") :]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\ntheme: {{name: material, font: false}}{validation}", "utf-8")
    (docs / "other.md").write_text("# Other\n", encoding="utf-8")
    (docs / "index.md").write_text("# A page\n\n[right](other.md#other)\n", encoding="utf-8")
    assert build(tmp_path) == 0
    (docs / "index.md").write_text(f"# A page\n\n[wrong]({link})\n", encoding="utf-8")
    assert build(tmp_path) == 1


def build(folder: Path) -> int:
    """The exit code of the build, with the options of `nox -s docs`."""
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (options,) = re.findall(r'session\.run\("mkdocs", "build", ((?:"--\w+", )*)"--site-dir"', noxfile)
    words = re.findall(r'"(\S+)"', options)
    line = [sys.executable, "-m", "mkdocs", "build", *words, "--site-dir", str(folder / "site")]
    return subprocess.run(line, cwd=folder, capture_output=True, check=False).returncode
