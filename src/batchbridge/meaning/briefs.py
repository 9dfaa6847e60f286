"""One-line representations of results, for consoles and debuggers; below everything that has one.

Its own file: sixteen modules use it.
"""

from __future__ import annotations

from collections.abc import Sized

LONGEST = 160
"""Characters of a line at most: a result's own fields may be any text."""


def printable(text: str) -> str:
    """A text without control characters: each is written out, line ends too."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def many(things: Sized, what: str) -> str:
    """The number of things, in words. what: one of them."""
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def brief(of: object, *facts: object) -> str:
    """A result as `<Name: fact, fact>`, on one line whatever the facts hold."""
    text = printable(" ".join(", ".join(map(str, facts)).split()))
    return f"<{type(of).__name__}: {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}>"
