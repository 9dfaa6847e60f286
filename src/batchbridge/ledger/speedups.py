"""Libraries that make the ledger faster where they are installed (the extra `speed`). Nothing needs them: whoever asks
here gets None where one is missing, and does the same with the standard library.

Its own file: the only place that tries optional imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

orjson: Any
try:
    orjson = import_module("orjson")
except ImportError:
    orjson = None
