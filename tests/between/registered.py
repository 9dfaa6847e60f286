"""The adapters that this distribution registers; a new one needs no change in the tests that ask for all of them."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from batchbridge.contract.adapter import Adapter
from batchbridge.reading.toml import parse_toml

_PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
ENTRY_POINTS = parse_toml(_PROJECT, "pyproject.toml").value["project"]["entry-points"]


@cache
def adapters() -> dict[str, Adapter]:
    """Framework to adapter."""
    found = {}
    for module in ENTRY_POINTS["batchbridge"].values():
        # Not every plugin brings adapters: the history of old versions brings findings.
        for entry in getattr(importlib.import_module(module), "batchbridge_adapters", list)():
            home, _, name = entry.place.partition(":")
            found[entry.framework] = getattr(importlib.import_module(home), name)()
    return found
