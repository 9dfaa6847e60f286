"""Idioms that read as translated do not stand in what users read: messages, help texts and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IDIOMS = {
    r"(?<!here )\b(?:is|are|was|were) no (?:multiples?|whole numbers?|part|text|mapping|number|list|file|program|option"
    r"|setting|text|recipe|run|script|key|field|adapter|plan|override|schedule|mistake|trainer|JSON|batch)\b": "is not",
    r"\b(?:is|are) none (?:of|that)\b": "is not one of, is not among",
    r"\bof one's own\b|\bone's own\b": "a custom ...",
    r"\bthat which\b": "what, or the noun",
    r"\bsomebody\b|\bnobody\b": "the user, another plugin, unknown, not used: who or what it is",
    r"\bshall\b": "should, must, will",
    r"(?<!are )\ball the same\b": "anyway, still",
    r"\bin the place of\b": "instead of, in place of",
    r"\bwhat is to be (?:said|done|looked at)\b": "the noun",
    r"\binside of\b": "inside",
    r"\bbut for (?!instance)": "except for, except",
    r", say[,);]": "for example",
    r"\bwhoever\b": "users who, a program that",
    r"\bof (?:ours|theirs|the user's)\b(?! own)": "our, their, your",
}
"""A pattern that no text for users has, and what to write for it."""
OF_PAGES = {r"\b(?:held|hold|holds) (?:[^.;:|]{0,60} )?against\b": "compare with, check by"}
"""The same of pages alone: the messages of a running trainer say what is held against its plan."""
BANNED = re.compile("|".join(IDIOMS), re.IGNORECASE)
BANNED_IN_PAGES = re.compile("|".join([*IDIOMS, *OF_PAGES]), re.IGNORECASE)
PAGES = [
    page
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "RELEASING.md",
        *sorted((ROOT / "docs").glob("**/*.md")),
        *sorted(ROOT.glob("plugins/*/README.md")),
    )
    if not page.relative_to(ROOT).as_posix().startswith(("docs/api.md", "docs/rules/", "docs/first_five_minutes.md"))
]
"""Those that are written by hand; `first_five_minutes` quotes what people said."""
QUOTED = {"native", "pattern"}
"""Keywords whose values are a framework's own words."""


def found_in(text: str, banned: re.Pattern[str] = BANNED) -> list[str]:
    return [match[0] for match in banned.finditer(" ".join(text.split()))]


def prose(page: Path) -> str:
    """A page without what programs print and what scripts write into it: their words are held where they stand."""
    text = page.read_text(encoding="utf-8")
    if re.search(r"(?m)^Written by `", text):  # as a whole
        return ""
    text = re.sub(r"(?s)<!-- written by .*?<!-- end -->", "", text)
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", text)


def user_texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of a module's strings with a blank in them, without docstrings and a framework's own words."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Call):
            quoted: list[ast.expr] = [keyword.value for keyword in node.keywords if keyword.arg in QUOTED]
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            quoted += node.args[:1] if name == "says" else []
            skipped |= {id(part) for each in quoted for part in ast.walk(each)}
        elif isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped |= {id(part) for part in node.values}
            whole = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def test_messages_and_help_texts_have_none() -> None:
    files = [
        file
        for folder in ("src", "adapters", "plugins/*/src")
        for base in ROOT.glob(folder)
        for file in base.rglob("*.py")
    ]
    assert len(files) > 300
    texts = [(file, *each) for file in files for each in user_texts(file.read_text(encoding="utf-8"))]
    assert len(texts) > 5000
    assert [(f"{file.relative_to(ROOT)}:{line}", found_in(text)) for file, line, text in texts if found_in(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_none(page: Path) -> None:
    assert found_in(page.read_text(encoding="utf-8")) == []
    assert found_in(prose(page), BANNED_IN_PAGES) == []


@pytest.mark.parametrize(
    "text",
    [
        "96 is no multiple of 14",
        "a file that is\n    no recipe",
        "fsdp: x is none of these",
        "programs of one's own",
        "a release that nobody has tried",
        "What the run shall mean",
        "it is started all the same",
        "Nobody reads it",
        "inside of a rollout",
        "valid but for one setting",
        "other sizes (8, say)",
        "whoever calls it",
        "code of the user's that returns",
    ],
)
def test_such_an_idiom_would_be_found(text: str) -> None:
    assert len(found_in(text)) == 1


@pytest.mark.parametrize("text", ["the step is held against\n    the plan", "It holds each row against the plan"])
def test_such_an_idiom_would_be_found_in_a_page(text: str) -> None:
    assert len(found_in(text, BANNED_IN_PAGES)) == 1


def test_plain_sentences_are_not() -> None:
    assert found_in("there is no run; it is no longer read; the values are all the same; one of its own options") == []


def test_a_frameworks_own_words_and_docstrings_are_not_looked_at() -> None:
    source = (
        'def f():\n    "nobody reads it"\n    g(native="x is no file")\n\n\n@says("nobody", "toy 1.0")\ndef h(): ...\n'
    )
    assert [text for _, text in user_texts(source) if found_in(text)] == []
    assert [text for _, text in user_texts('f"{x} is no multiple of {y}"\ng("nobody knows it")') if found_in(text)]
