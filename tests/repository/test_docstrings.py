"""Docstrings of what is shipped: the subject of each one's first sentence is a noun, so that an index can show it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "adapters", "plugins/*/src")
NO_SUBJECT = frozenset(("What", "See", "As", "Of", "How", "Where", "Why", "When", "While", "Which", "Raises"))


def without_subject(text: str) -> Iterator[str]:
    """The first lines of a module's docstrings, those below assignments included, that begin with no noun."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                said = statement.value.value
                if isinstance(said, str) and said.strip() and said.split()[0].strip(".,:") in NO_SUBJECT:
                    yield said.strip().splitlines()[0]


def test_every_first_sentence_has_a_noun_as_its_subject() -> None:
    files = {path.relative_to(ROOT).as_posix(): path for each in FOLDERS for path in ROOT.glob(f"{each}/**/*.py")}
    assert len(files) > 400
    found = {name: list(without_subject(path.read_text(encoding="utf-8"))) for name, path in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        '"""What is read."""',
        'A = 1\n"""Of the rows,\nin order."""',
        'class A:\n    a: int\n    """Where it stands."""',
        'def f():\n    """See: `g`."""',
        'class A:\n    async def f(self):\n        """Raises `E` unless it is there."""',
    ],
)
def test_a_sentence_without_a_subject_is_found(text: str) -> None:
    assert len(list(without_subject(text))) == 1
    assert list(without_subject(text.replace('"""', '"""The rows. ', 1))) == []
