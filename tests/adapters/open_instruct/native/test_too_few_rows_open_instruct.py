"""Fewer completions than replicas (BB-OI-080), asked of Open-Instruct's own packing, sharing and training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Ran = Callable[..., Path]


def test_rows_of_fewer_completions_than_replicas_are_all_dropped_and_no_step_is_taken(ran: Ran) -> None:
    measured = json.loads((ran("too_few_rows", 0, "rows.json") / "rows.json").read_text(encoding="utf-8"))
    assert measured["shares"] == {"7": [0] * 8, "8": [1] * 8}
    assert measured["steps"] == {"7": 0, "8": 1}
