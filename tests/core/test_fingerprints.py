"""Digests of functions: what changes them, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchbridge.kit.fingerprints import digests

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


OTHERWISE = (
    TEXT,
    TEXT.replace("    def m", "    @property\n    def m"),
    TEXT.replace("    def m", '    @decorated(\n        """\nany\n"""\n    )\n    def m'),
    TEXT.replace("    def m", '    @decorated("""\n    any\n    """)\n    # why\n    def m'),
    TEXT.replace("def f", "@decorated(\n    1,\n)\n@twice\ndef f"),
    TEXT.replace("return 1", 'return """\ntext at the margin\n"""'),
    TEXT.replace("return 2", "return [\n    2,\n]"),
    TEXT.replace("def f():", "def f(\n    a=1,\n) -> int:"),
    TEXT.replace("class C:", 'class C:\n    """As in\n\n    def m(self):\n        return 2\n    """\n'),
    TEXT + "\n\nclass C:\n    def m(self):\n        return 3\n",
    TEXT.replace("def m", "def more"),
    TEXT.replace("    def m(self):\n        return 2\n", "    if True:\n        def m(self):\n            return 2\n"),
    TEXT.replace("class C:", "class C(\n    object\n):\n    a = 1\n"),
    TEXT.replace("class C:", "class B:\n    def m(self):\n        return 2\n\n\nclass C:\n    b = 2\n"),
    TEXT.replace("class C:", "\f\nclass C:"),
    TEXT + "\f\ndef f():\n    return 5\n",
    TEXT + "\n    \fdef m(self):\n        return 5\n",
    TEXT.replace("def f():", "def f ():"),
    "def f(:\n",
)


@pytest.mark.parametrize("text", OTHERWISE)
@pytest.mark.parametrize("recorded", OTHERWISE)
def test_a_file_that_is_recognised_without_parsing_has_the_digests_of_the_parsed_one(
    tmp_path: Path, text: str, recorded: str
) -> None:
    known = {key: {digest} for key, digest in found(tmp_path, recorded).items()}
    parsed = found(tmp_path, text)
    assert digests(tmp_path, FUNCTIONS, known) == parsed


def test_a_known_file_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {key: {digest} for key, digest in found(tmp_path, "# other\n" + TEXT).items()}
    monkeypatch.setattr("ast.parse", None)
    assert {key: {digest} for key, digest in digests(tmp_path, FUNCTIONS, known).items()} == known
