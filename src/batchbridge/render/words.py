"""The words of a first screen in the reader's language: English as it is written, or Chinese from `chinese.json`.

A sentence is written in English where it is made, and is its own key. What has no Chinese stands in English, as a
whole: no sentence mixes both. `chinese.json` is read when Chinese is first spoken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

LANGUAGES = ("en", "zh")
"""English, Chinese (simplified)."""
VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""Environment variables that say a language; the first that is set decides, as in the C library."""


class Chinese(NamedTuple):
    """The tables of `chinese.json`, by their English: sentences with the same placeholders; nouns that are counted,
    each behind the one character of its measure word; titles of rules."""

    sentences: Mapping[str, str]
    units: Mapping[str, str]
    titles: Mapping[str, str]


_spoken: ContextVar[Chinese | None] = ContextVar("batchbridge_spoken", default=None)


@cache
def chinese() -> Chinese:
    """The catalogue."""
    import json
    import pkgutil

    data = pkgutil.get_data("batchbridge.render", "chinese.json")
    assert data is not None, "the file lies in the wheel"
    return Chinese(**json.loads(data))


def language_of(environment: Mapping[str, str]) -> str:
    """The language of a person with these environment variables: one of `LANGUAGES`."""
    said = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    return "zh" if re.match(r"zh(?![a-z])", said, re.IGNORECASE) else "en"


@contextmanager
def spoken(language: str | None) -> Iterator[None]:
    """Texts that are made inside have this language. None: that of the environment.

    Raises:
        ValueError: It is none of `LANGUAGES`.
    """
    if language is None:
        language = language_of(os.environ)
    if language not in LANGUAGES:
        raise ValueError(f"{language!r} is no language that is spoken here: {', '.join(LANGUAGES)}")
    before = _spoken.set(chinese() if language == "zh" else None)
    try:
        yield
    finally:
        _spoken.reset(before)


def language() -> str:
    """The language that is spoken: one of `LANGUAGES`."""
    return "en" if _spoken.get() is None else "zh"


def say(sentence: str, /, **parts: object) -> str:
    """The sentence in the spoken language, with its parts in place of `{name}`."""
    known = _spoken.get()
    text = sentence if known is None else known.sentences.get(sentence, sentence)
    return text.format(**parts) if parts else text


def listed(parts: Iterable[str]) -> str:
    """The parts behind one another, with the language's comma."""
    return say(", ").join(parts)


def title(english: str) -> str | None:
    """The title of a rule in the spoken language; None: it has none there."""
    known = _spoken.get()
    return english if known is None else known.titles.get(english)


def unit(value: float | None, one: str, many: str) -> str:
    """The noun behind a number. None: an open one, which stands behind no number."""
    known = _spoken.get()
    if known is None or one not in known.units:
        return one if value == 1 else many
    return known.units[one][0 if value is not None else 1 :]


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def padded(text: str, width: int) -> str:
    """The text with blanks behind it, `width` columns in all."""
    return text + " " * (width - cells(text))


_BEFORE = "\uff0c\u3002\uff1b\uff1a\u3001\uff09\uff01\uff1f\u300d\u300b\u201d\u2019%"
"""Characters that begin no line: closing marks."""
_BEHIND = "\uff08\u300c\u300a\u201c\u2018"
"""Characters that end no line: opening marks."""
_PIECE = re.compile(r" +|[^ ]+")


def folded(line: str, width: int, hanging: str) -> Iterator[str]:
    """The lines of at most `width` columns that a line is folded to, behind the first one each with `hanging` in front:
    at blanks, and between two Chinese characters. Other words, names of files among them, stay whole."""
    shown, blanks = "", ""
    for piece in (part for run in _PIECE.findall(line) for part in _parts(run)):
        if piece.isspace() and shown.strip():
            blanks = piece
        elif not shown.strip() or cells(shown) + len(blanks) + cells(piece) <= width:
            shown, blanks = f"{shown}{blanks}{piece}", ""
        else:
            yield shown
            shown, blanks = f"{hanging}{piece}", ""
    yield shown


def _parts(run: str) -> Iterator[str]:
    """A run without blanks, cut where a line may end."""
    if run.isascii() or re.search(r"[A-Za-z0-9_./-][\u3400-\u9fff]|[\u3400-\u9fff][A-Za-z0-9_./-]", run):
        yield run  # a name that has Chinese in it, or no Chinese at all
        return
    start = 0
    for place in range(1, len(run)):
        last, following = run[place - 1], run[place]
        wide = cells(last) == 2 or cells(following) == 2
        if wide and following not in _BEFORE and last not in _BEHIND:
            yield run[start:place]
            start = place
    yield run[start:]
