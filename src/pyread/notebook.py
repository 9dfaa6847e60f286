"""The Python code of a Jupyter notebook, and what its shell lines install."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, NamedTuple

_MAGIC = re.compile(r"\s*[!%?]")
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "python", "python3"})
"""Cell magics whose cell is Python anyway."""


class NotebookCode(NamedTuple):
    """Python text whose cells stand one below the other, with the last line of each; `cells` is empty for a file.

    shell: lines that a shell runs. unread: numbers of the cells that are not a Python."""

    text: str
    cells: tuple[int, ...]
    shell: tuple[str, ...]
    unread: tuple[int, ...] = ()


def code_of_notebook(text: str) -> NotebookCode:
    """The code of a notebook. Every cell counts, so that cell 3 is the third cell that a reader sees. Raises
    `ValueError` where the text is not a notebook."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it has no list of cells")
    lines: list[str] = []
    ends: list[int] = []
    shell: list[str] = []
    unread: list[int] = []
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            own, commands = _code_of_cell(_text_of(cell.get("source")))
            shell += commands
            if _parses(own):
                lines += own
            else:
                unread.append(number)
                lines += [""] * len(own)
        if not lines or len(lines) == (ends[-1] if ends else 0):
            lines.append("")  # a cell has one line at least, so that each has an end of its own
        ends.append(len(lines))
    return NotebookCode("\n".join(lines) + "\n", tuple(ends), tuple(shell), tuple(unread))


def _text_of(source: Any) -> str:
    if isinstance(source, list):
        return "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _code_of_cell(text: str) -> tuple[list[str], list[str]]:
    """The lines of a cell, blank where IPython and not Python reads them; and the lines that a shell runs."""
    lines = text.splitlines()
    magic = _CELL_MAGIC.match(lines[0]) if lines else None
    if magic is not None and magic[1] not in _PYTHON_MAGICS:
        return [""] * len(lines), (lines[1:] if magic[1] in ("bash", "sh", "shell") else [])
    code, shell, goes_on = [], [], False
    for line in lines:
        if goes_on or _MAGIC.match(line):
            stripped = line.strip()
            shell.append(stripped.lstrip("!%"))
            # A blank line would leave `if COLAB:` without a body.
            code.append("" if goes_on else line[: len(line) - len(line.lstrip())] + "pass")
            goes_on = stripped.endswith("\\")
        else:
            code.append(line)
    return code, shell


def _parses(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines) + "\n")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
