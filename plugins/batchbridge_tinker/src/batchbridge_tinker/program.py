"""The training loop as a Python program: `loop.txt` with a run's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchbridge_tinker.settings import KEYS, LoopSettings

LOOP = Path(__file__).with_name("loop.txt")


def program(native: LoopSettings) -> str:
    """The loop of these settings."""
    return LOOP.read_text("utf-8").replace("@SETTINGS@", "\n".join(_arguments(native)))


def _arguments(native: LoopSettings) -> Iterator[str]:
    """The settings as arguments, each on a line with its unit, groups as nested dicts; null ones are left out."""
    tree: dict[str, Any] = {}
    for row in KEYS:
        if (value := native.get(row.key)) is not None:
            *groups, leaf = row.key.split(".")
            at = tree
            for group in groups:
                at = at.setdefault(group, {})
            remark = "" if row.unit in ("", "kind", "flag", "1") else f"  # {row.unit}"
            at[leaf] = f"{json.dumps(value) if isinstance(value, str) else repr(value)},{remark}"
    for name, said in tree.items():
        yield from _entry(f"{name}=", said, 1)


def _entry(begins: str, said: Any, depth: int) -> Iterator[str]:
    pad = "    " * depth
    if isinstance(said, str):
        yield f"{pad}{begins}{said}"
        return
    yield f"{pad}{begins}{{"
    for name, inner in said.items():
        yield from _entry(f"{json.dumps(name)}: ", inner, depth + 1)
    yield f"{pad}}},"
