"""HTML fragments of results, as notebooks show them (`_repr_html_`). Plain strings, every value escaped.

Its own file: notebooks alone need HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchbridge.meaning.briefs import printable

LONGEST, MOST = 200, 20
"""Characters of a value, and rows of a table."""
_CELL = "text-align: left; vertical-align: top"


def fragment(title: str, *parts: str) -> str:
    """A result: one line in bold, then its parts."""
    return f'<div class="batchbridge"><p><strong>{shown(title)}</strong></p>{"".join(parts)}</div>'


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of the first rows, and how many there are more; nothing without a row."""
    lines = [f"<tr>{''.join(_cell('td', value) for value in row)}</tr>" for row in rows]
    if not lines:
        return ""
    head = "".join(_cell('th scope="col"', name) for name in headers)
    more = f"<p>and {len(lines) - MOST:,} more</p>" if len(lines) > MOST else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines[:MOST])}</tbody></table>{more}"


def shown(value: object) -> str:
    """A value as text of HTML: short, without control characters, escaped."""
    from html import escape  # brings a table of entities, which only notebooks need

    text = f"{value:,}" if type(value) is int else "" if value is None else str(value)
    return escape(printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."))


def _cell(tag: str, value: object) -> str:
    return f'<{tag} style="{_CELL}">{shown(value)}</{tag.partition(" ")[0]}>'
