"""Digests of functions: what changes them, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchbridge.contract.fingerprints import digests

TEXT = "def f():\n    return 1\n\n\nclass C:\n    def m(self):\n        return 2\n"
FUNCTIONS = {"a.py": ("f", "C.m")}


def found(folder: Path, text: str) -> dict[str, str]:
    (folder / "a.py").write_text(text, encoding="utf-8")
    return digests(folder, FUNCTIONS)


@pytest.mark.parametrize("text", ["# one\n" + TEXT, TEXT.replace("return 1", "# why\n\n    return 1  ")])
def test_comments_blank_lines_and_trailing_blanks_change_no_digest(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == found(tmp_path, TEXT)


@pytest.mark.parametrize(
    ("old", "new", "function"),
    [
        ("return 1", "return 3", "f"),
        ("return 2", "return 3", "C.m"),
        ("    def m", "    @property\n    def m", "C.m"),
        ("def f", "async def f", "f"),
    ],
)
def test_other_code_changes_the_digest_of_its_function_alone(tmp_path: Path, old: str, new: str, function: str) -> None:
    native, other = found(tmp_path, TEXT), found(tmp_path, TEXT.replace(old, new))
    assert [key for key in native if native[key] != other[key]] == [f"a.py: {function}"]


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    before = found(tmp_path, TEXT)
    assert found(tmp_path, TEXT.replace("return 1", "return 10")) != before
    assert found(tmp_path, TEXT) == before


@pytest.mark.parametrize("text", ["", "def f(:\n"])
def test_a_function_that_is_missing_or_cannot_be_read_has_an_empty_digest(tmp_path: Path, text: str) -> None:
    assert set(found(tmp_path, text).values()) == {""}
    assert set(digests(tmp_path / "nowhere", FUNCTIONS).values()) == {""}
