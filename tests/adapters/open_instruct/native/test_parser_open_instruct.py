"""grpo_fast.py's own parser against the kinds of our settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from parser import WORDS  # isort: skip  # this folder's

from batchbridge_open_instruct import settings

LEFT = ("attn_implementation", "use_cache", "max_steps")
"""Words that change with the checkout; a flag that needs a word; a bound that the parser leaves for later."""


def test_what_says_nothing_about_batches_takes_what_the_parser_takes(ran: Callable[..., Path]) -> None:
    native = json.loads((ran("parser", 0, "parser.json") / "parser.json").read_text(encoding="utf-8"))
    rows = settings.other_rows(settings.NEWEST)
    ours = {
        key: [word for word in WORDS if row.kind.takes(word or True)] for key, row in rows.items() if key not in LEFT
    }
    assert ours == {key: words for key, words in native.items() if key in ours}


def test_no_command_line_says_none(ran: Callable[..., Path]) -> None:
    native = json.loads((ran("parser", 0, "parser.json") / "parser.json").read_text(encoding="utf-8"))
    optional = {key: row for key, row in settings.rows_of(settings.NEWEST).items() if row.kind.takes(None)}
    assert [key for key, row in optional.items() if "None" in native[key] or row.kind.takes("None")] == []
