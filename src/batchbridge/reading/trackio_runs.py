"""trackio's record of runs: the data base of a project, which holds each run's settings as JSON.

The file is opened for reading alone, nothing is written beside it, and no more than one table is asked. Source: trackio
0.43.0 sqlite_storage: table `configs` with `run_name` and `config`; before 0.24 it had no `run_id`.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from batchbridge.reading.documents import read_bytes
from batchbridge.reading.yaml_json import refuse

MAX_BYTES = 256 << 20
"""Largest data base that is read (bytes)."""
MAX_RUNS = 1000
_LARGEST_CONFIG = 1 << 20
_HEADER = b"SQLite format 3\0"
_STEPS = 10_000_000
"""Instructions of SQLite's machine after which a query is given up: a hostile file may have a table of any form."""


def read_runs(path: Path, file: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, settings) of each run in a project's data base, in the order of their start. Raises `RefusedFile`."""
    head = read_bytes(path, file, MAX_BYTES)[: len(_HEADER)]
    if head != _HEADER:
        refuse("BB004", "this is no data base of trackio", file)
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        connection = sqlite3.connect(address, uri=True)
        try:
            connection.set_progress_handler(lambda: 1, _STEPS)
            kind = connection.execute("SELECT type FROM sqlite_master WHERE name = 'configs'").fetchone()
            if kind != ("table",):
                refuse("BB004", "this data base has no table of runs' settings: it is not trackio's", file)
            question = "SELECT run_name, config FROM configs WHERE length(config) <= ? ORDER BY rowid LIMIT ?"
            rows = connection.execute(question, (_LARGEST_CONFIG, MAX_RUNS)).fetchall()
        finally:
            connection.close()
        for name, text in rows:
            config = json.loads(text)
            if isinstance(config, dict):
                found.append((str(name), {key: value for key, value in config.items() if not key.startswith("_")}))
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        refuse("BB004", f"this data base cannot be read: {error}"[:200], file)
    return found
