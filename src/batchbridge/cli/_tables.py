"""Output for a terminal: lines folded at blanks, tables that cut no word, findings and verdicts in colour. Plain and
stable everywhere else."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TextIO

import click

from batchbridge.render.text import TableRenderer, plain_table
from batchbridge.render.words import cells, folded, language, listed, say, spoken

INDENT = 4
"""Most blanks that stand before the lines of a table."""
HANGING = 2
"""Blanks by which the rest of a folded line stands further in than its beginning."""
_COLOURS = {"error": "31", "invalid": "31", "undecided": "33", "not read": "33", "warning": "33", "valid": "32"}


@cache
def _coloured_words(language: str) -> tuple[re.Pattern[str], Mapping[str, str]]:
    """(the severity of a finding, and the verdict of `batchbridge.render.text.summary`; the colour of each word)."""
    with spoken(language):
        kinds = {say(kind): _COLOURS[kind] for kind in ("error", "undecided", "warning")}
        verdicts = {say(one.upper()): _COLOURS[one] for one in ("valid", "invalid", "undecided", "not read")}
    pattern = (
        rf"^(?:(?P<indent> {{0,2}})(?P<kind>{'|'.join(kinds)})(?= (?::|\S+:\d+ | ))"
        rf"|(?P<name>\S.*  )(?P<verdict>{'|'.join(verdicts)})(?=  ))"
    )
    return re.compile(pattern, re.MULTILINE), {**kinds, **verdicts}


def show(text: str, *, err: bool = False) -> None:
    """Prints a printable `text`: on a terminal folded to its width and in colour, else as it is. err: on standard
    error."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        from batchbridge.render.lanes_in_text import ASCII

        text = text.translate(ASCII)
    shown = "\n".join(_folded(text, _width())) if _is_terminal(stream) else text
    click.echo(shown if err else coloured(shown), err=err)


def _width() -> int:
    """Columns of the terminal; COLUMNS is honoured."""
    return max(shutil.get_terminal_size().columns, 20)


def _folded(text: str, width: int) -> Iterator[str]:
    """The lines of `text`, those that are longer than `width` columns folded at blanks; words stay whole."""
    for line in text.split("\n"):
        if cells(line) <= width:
            yield line
            continue
        first = len(line) - len(line.lstrip(" "))
        yield from folded(line, width, " " * (first + HANGING))


def table_for_stdout() -> TableRenderer:
    """`plain_table`, or on a terminal rich's tables, or a record for each row where its columns are too narrow."""
    return _table_on_terminal if _is_terminal() else plain_table


def _table_on_terminal(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(cells, column)) for column in zip(headers, *rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) + INDENT <= _width():
        return _rich_table(headers, rows)
    return "\n".join(line for row in rows for line in _record(headers, row))


GAP = 3
"""Blanks between two columns of `_rich_table`."""


def _record(headers: Sequence[str], row: Sequence[str]) -> Iterator[str]:
    """A row as lines: its first cell, and below it the others, each behind its column's name."""
    yield row[0]
    said = [f"{name} {cell}" for name, cell in zip(headers[1:], row[1:], strict=True) if cell]
    if said:
        yield f"  {listed(said)}"


def coloured(text: str) -> str:
    """A printable `text` with its severities and verdicts in colour, where standard output is a terminal that has it.

    NO_COLOR: https://no-color.org.
    """
    if not _is_terminal() or os.environ.get("NO_COLOR"):
        return text
    pattern, colours = _coloured_words(language())

    def colour(found: re.Match[str]) -> str:
        before, word = found["indent"] or found["name"] or "", found["kind"] or found["verdict"]
        return f"{before}\x1b[{colours[word]}m{word}\x1b[0m"

    return pattern.sub(colour, text)


def _is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person reads what is written to `stream`; None: to standard output."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


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
