"""What an index shows of the built files: links that lead somewhere from there, and no release without an address.

`nox -s build` names the wheel (BATCHBRIDGE_WHEEL); the source distribution lies beside it.
"""

from __future__ import annotations

import email
import email.message
import io
import os
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from readme_renderer import markdown

from batchbridge import address

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT))

import hatch_build

WHEEL = Path(os.environ["BATCHBRIDGE_WHEEL"])
FILES = sorted(WHEEL.parent.glob("batchbridge-*"))
HOME, SITE = "https://git.example.org/lab/batchbridge", "https://lab.example.org/batchbridge"


@pytest.fixture(scope="module")
def metadata() -> email.message.Message:
    with zipfile.ZipFile(WHEEL) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


class Links(HTMLParser):
    """Addresses of a page's links and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if (tag, name) in {("a", "href"), ("img", "src")}]


def links(text: str) -> list[str]:
    """Those of a README as PyPI renders it. Raises where PyPI would refuse to."""
    said = io.StringIO()
    page = markdown.render(text, stream=said)
    assert page is not None, said.getvalue()
    found = Links()
    found.feed(page)
    return found.found


def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, site: str) -> dict[str, Any]:
    """What the build adds to the metadata where the owner has set these addresses."""
    text = hatch_build.ADDRESS.read_text(encoding="utf-8")
    place = tmp_path / "src" / "batchbridge" / "address.py"
    place.parent.mkdir(parents=True)
    place.write_text(text.replace(address.SOURCE, source).replace(address.SITE, site), encoding="utf-8")
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(hatch_build, "ADDRESS", place)
    monkeypatch.setattr(hatch_build, "ROOT", tmp_path)
    made: dict[str, Any] = {"version": "9.9"}
    hatch_build.CustomMetadataHook(str(tmp_path), {}).update(made)
    return made


def test_both_files_are_what_an_index_takes() -> None:
    assert [file.suffix for file in FILES] == [".whl", ".gz"]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *FILES], check=True)


def test_the_wheel_has_no_file_that_it_should_not() -> None:
    """W009, several packages at the top, is left out with its reason in pyproject.toml."""
    subprocess.run([sys.executable, "-m", "check_wheel_contents", WHEEL], cwd=ROOT, check=True)


def test_every_link_of_the_shown_readme_is_whole(metadata: email.message.Message) -> None:
    text = metadata.get_payload(decode=True)
    assert isinstance(text, bytes)
    shown = links(text.decode("utf-8"))
    assert len(shown) > 20
    assert [one for one in shown if not one.startswith(("https://", "#"))] == []
    for one in shown:
        if found := re.match(re.escape(address.SOURCE) + r"/(?:blob|raw)/v[\d.]+/([^#]*)", one):
            assert (ROOT / found[1]).exists(), one
    assert f"{address.SITE}/playground/" in shown


def test_a_link_that_leads_nowhere_from_there_would_be_seen() -> None:
    assert links("[start](docs/start.md)") == ["docs/start.md"]


def test_the_projects_addresses_are_those_of_the_constant(metadata: email.message.Message) -> None:
    urls = dict(str(line).split(", ", 1) for line in metadata.get_all("Project-URL") or ())
    assert set(urls) == {"Documentation", "Playground", "Changelog", "Issues", "Source"}
    assert all(url.startswith((address.SOURCE, address.SITE)) for url in urls.values())


def test_a_release_without_an_address_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHBRIDGE_RELEASE", "1")
    for number, pair in enumerate(
        [(f"https://x/{address.PLACEHOLDER}/batchbridge", SITE), (HOME, f"https://{address.PLACEHOLDER}.example")]
    ):
        with pytest.raises(ValueError, match="set SOURCE and SITE before a release"):
            hooked(tmp_path / str(number), monkeypatch, *pair)


def test_a_release_with_one_has_it_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHBRIDGE_RELEASE", "1")
    made = hooked(tmp_path, monkeypatch, HOME, SITE)
    assert made["urls"]["Playground"] == f"{SITE}/playground/"
    assert made["urls"]["Changelog"] == f"{HOME}/blob/v9.9/CHANGELOG.md"
    text = made["readme"]["text"]
    assert f"({HOME}/blob/v9.9/docs/index.md)" in text
    assert address.PLACEHOLDER not in text + str(made["urls"])
