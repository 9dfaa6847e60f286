"""The project's address stands in one place, and every text that names it is written from there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import make_address
import pytest

from batchbridge import address

ROOT = Path(__file__).parents[2]
MADE_UP = "https://git.example.org/lab/batchbridge"
MENTIONS = re.compile(rf"\b{address.PLACEHOLDER}(?:/batchbridge|\.github\.io)")


@pytest.mark.parametrize("page", make_address.PAGES)
def test_a_page_names_the_address_that_is_set(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert make_address.written(text, address.SOURCE) == text, "python docs/make_address.py"
    other = make_address.written(text, MADE_UP)
    assert other != text
    assert MADE_UP in other or "lab/batchbridge@REVISION" in other
    assert not MENTIONS.search(other)


def test_no_other_file_names_it() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: there are no tracked files")
    allowed = {*make_address.PAGES, "src/batchbridge/address.py", Path(__file__).relative_to(ROOT).as_posix()}
    files = [ROOT / name for name in listed.stdout.split("\0") if name and name not in allowed]
    found = [file for file in files if file.is_file() and MENTIONS.search(file.read_text("utf-8", errors="replace"))]
    assert found == []


def test_whether_it_is_set_is_seen_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "SOURCE", MADE_UP)
    monkeypatch.setattr(address, "SITE", "https://lab.example.org")
    assert address.are_set()
    monkeypatch.setattr(address, "SITE", f"https://{address.PLACEHOLDER}.example.org")
    assert not address.are_set()
