"""Tables: drawn by rich on a terminal, plain and stable everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from batchbridge.render.text import Table, plain_table


def table_for_stdout() -> Table:
    """`plain_table`, or rich's tables where standard output is a terminal that can show them."""
    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return plain_table
    return _rich_table


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()  # honours NO_COLOR, COLUMNS and the terminal's width
    table = RichTable(box=SIMPLE, show_edge=False, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
