"""Which of our rules a recorded error of TRL is, and which rule we name first. Imports no framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batchbridge.contract.reading import Context, Source
from batchbridge.kit.error_texts import quotations
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.rules import RULES as ROWS
from batchbridge_trl.settings import holds

RULES = {
    "can not be both configured": "BB-TRL-017",
    "must be divisible by the global batch size": "BB-TRL-019",
    "The global eval batch size": "BB-TRL-020",
    "The effective eval batch size": "BB-TRL-020",
    "must be divisible by num_generations": "BB-TRL-021",
    "maxlen must be non-negative": "BB-TRL-029",
    "The effective train batch size": "BB-TRL-021",
    "The global train batch size": "BB-TRL-021",
    "requires at least 2 generations": "BB-TRL-022",
    "must be less than vllm_importance_sampling_clip_max": "BB-TRL-023",
    "At least one of `vllm_importance_sampling_clip_min`": "BB-TRL-025",
    "does not support two-sided": "BB-TRL-026",
    "warmup_ratio must lie": "BB-TRL-027",
    "auto_find_batch_size is not supported": "BB-TRL-016",
    "At most one of fp16 and bf16": "BB-TRL-011",
    "Expected value warmup_steps": "BB-TRL-012",
    "warmup_steps must be": "BB-TRL-012",
}
"""A piece of TRL's or transformers' own message -> our code."""


def rule_of_text(error: str | None, settings: Mapping[str, Any]) -> str | None:
    """The code of the rule that a native error is; None for none."""
    if error is None:
        return None
    if error.startswith("ZeroDivisionError"):
        return "BB-TRL-024" if settings["per_device_train_batch_size"] else "BB-TRL-018"
    return next((code for text, code in RULES.items() if text in error), error)


def retired_rule_of_text(error: str | None) -> str | None:
    """The code of the retired row whose native text a native error is: nothing of ours repeats it, and it may hide a
    later error that we name. None for any other."""
    quoted = ((row.code, text) for row in ROWS if row.retired for text in quotations(row.native))
    return next((code for code, text in quoted if re.search(text, error or "")), None)


def our_rule(settings: Mapping[str, Any], world: int, version: str) -> str | None:
    """The first error that we find and that TRL raises where it constructs its config; its trainer too before 0.18."""
    adapter = TrlAdapter()
    reading = adapter.read(Source(values=dict(settings)), Context(framework_version=version, world_size=world))
    phases = ("config", "construction") if holds("<0.18", version) else ("config",)
    found = [*reading.findings, *adapter.check(reading)]
    return next((f.code for f in found if f.severity == "error" and f.phase in phases), None)
