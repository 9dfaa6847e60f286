"""Libraries that make the ledger faster where they are installed (the extra `speed`). Nothing needs them: whoever asks
here gets None where one is missing, and does the same with the standard library."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


orjson = _imported("orjson")
