"""JSON for programs: valid for every reader, whatever a configuration contains.

Its own file: every output for programs uses it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

LAYOUT = "batchbridge/json/1"
"""The layout of what commands print for `--json`. While it says so, names are added, and none is taken away."""


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
