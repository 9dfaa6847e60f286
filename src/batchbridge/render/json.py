"""JSON for programs: valid for every reader, whatever a configuration contains.

Its own file: every output for programs uses it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LAYOUT = "batchbridge/json/1"
"""The layout of what commands print for `--json`. While it says so, names are added, and none is taken away."""


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


def dumps(value: Any) -> str:
    """Indented JSON of `value` made of plain types; see `plain`."""
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` in JSON's own types: mappings with text keys, lists, and text for what JSON lacks (dates, infinities)."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    return str(value)
