"""The exit codes of every command, in one table.

Its own file: every command has them, and `--help` imports nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ExitRow(NamedTuple):
    """An exit code of every command: its word in JSON, its verdicts, and its meaning for a person."""

    code: int
    word: str
    verdicts: tuple[str, ...]
    meaning: str


EXIT_TABLE = (
    ExitRow(
        0,
        "fine",
        ("valid", "equivalent", "complete", "kept"),
        "right; warnings and notes may have been printed, and of a folder or of several files what is not read or "
        "undecided is counted on the first line",
    ),
    ExitRow(2, "invalid", ("invalid",), "a certain error: this run stops, or trains something else; a file is missing"),
    ExitRow(
        3,
        "not equivalent",
        ("not equivalent", "lossy", "not kept"),
        "`diff`, `ledger diff` or `ledger verify` found a difference, `convert` loses something, `scale` cannot keep "
        "all",
    ),
    ExitRow(
        4,
        "undecided",
        ("undecided",),
        "undecided, or not read, for one path that was named; of a folder or of several files with "
        "`--fail-on unread` or `--fail-on undecided`",
    ),
    ExitRow(64, "usage", (), "usage"),
)
"""The exit codes, in one table: docs/cli.md, `--help` and JSON have them from here."""
EXIT_MEANINGS: Mapping[int, str] = {row.code: row.word for row in EXIT_TABLE if row.verdicts}
"""The meaning of a command's exit code, where it has a verdict."""
