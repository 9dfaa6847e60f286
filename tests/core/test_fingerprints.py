"""Digests of a checkout's functions: what changes them, what does not, and how a difference is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchbridge.fingerprints import difference, digests

TEXT = "def f():\n    return 1\n\n\nclass C:\n    def m(self):\n        return 2\n"
SEAMS = {"a.py": ("f", "C.m")}


def found(folder: Path, text: str) -> dict[str, str]:
    (folder / "a.py").write_text(text, encoding="utf-8")
    return digests(folder, SEAMS)


@pytest.mark.parametrize("text", ["# one\n" + TEXT, TEXT.replace("return 1", "# why\n\n    return 1  ")])
def test_comments_blank_lines_and_trailing_blanks_change_no_digest(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == found(tmp_path, TEXT)


@pytest.mark.parametrize(("old", "new", "seam"), [("return 1", "return 3", "f"), ("return 2", "return 3", "C.m")])
def test_other_code_changes_the_digest_of_its_function_alone(tmp_path: Path, old: str, new: str, seam: str) -> None:
    proven = found(tmp_path, TEXT)
    assert difference(found(tmp_path, TEXT.replace(old, new)), proven) == f"a.py: {seam}"


@pytest.mark.parametrize("text", ["", "def f(:\n"])
def test_a_function_that_is_missing_or_cannot_be_read_has_an_empty_digest(tmp_path: Path, text: str) -> None:
    assert set(found(tmp_path, text).values()) == {""}
    assert set(digests(tmp_path / "nowhere", SEAMS).values()) == {""}


def test_a_difference_names_four_functions_and_counts_the_others() -> None:
    proven = {f"a.py: f{index}": "x" for index in range(6)}
    assert difference({}, proven) == "a.py: f0, a.py: f1, a.py: f2, a.py: f3 and 2 more"
    assert difference(proven, proven) == ""
