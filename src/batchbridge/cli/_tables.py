"""Output for a terminal: tables drawn by rich, findings and verdicts in colour. Plain and stable everywhere else."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from batchbridge.render.text import TableRenderer, plain_table

INDENT = 2
"""Blanks that a section puts before the lines of a table."""
_COLOURS = {"error": "31", "invalid": "31", "undecided": "33", "not read": "33", "warning": "33", "valid": "32"}
_COLOURED = re.compile(
    r"^(?:(?P<indent> {0,2})(?P<kind>error|undecided|warning)(?= (?::|\S+:\d+ | ))"
    r"|(?P<name>\S.*  )(?P<verdict>VALID|INVALID|UNDECIDED|NOT READ)(?=  ))",
    re.MULTILINE,
)
"""The severity of a finding, and the verdict of `batchbridge.render.text.summary`."""


def table_for_stdout() -> TableRenderer:
    """`plain_table`, or rich's tables where standard output is a terminal that can show them."""
    return _rich_table if _is_terminal() else plain_table


def coloured(text: str) -> str:
    """A printable `text` with its severities and verdicts in colour, where standard output is a terminal that has it.

    NO_COLOR: https://no-color.org.
    """
    if not _is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return _COLOURED.sub(
        lambda found: _colour(found["indent"] or found["name"] or "", found["kind"] or found["verdict"]), text
    )


def _colour(before: str, word: str) -> str:
    return f"{before}\x1b[{_COLOURS[word.lower()]}m{word}\x1b[0m"


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    # Without escape codes: the text that a table stands in is made printable as a whole. COLUMNS is honoured.
    console = Console(color_system=None, width=Console().width - INDENT)
    table = RichTable(box=SIMPLE, show_edge=False, pad_edge=False)
    for place, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=not place)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
