"""Refusals of old versions of frameworks: TRL before 0.18, verl before 0.6, OpenRLHF before 0.9.

Nobody starts such a run today, but people still pin these versions, and forks carry them. A plugin like any third
party's: rows about those versions, over the facts that the adapters' own rows are asked about.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge.kit.rule_table import Rule

ROWS = {
    "trl": ("trl", "<0.18"),
    "open_r1": ("trl", "<0.18"),
    "verl": ("verl", "<0.6.0"),
    "openrlhf": ("openrlhf", "<0.9"),
}
"""Framework to the module here with its rows, and the versions that they are about."""


@hookimpl
def batchbridge_rules(framework: str, version: str) -> Iterable[Rule[Any]]:
    """Rules for what the framework refused in this version."""
    module, versions = ROWS.get(framework, ("", ""))
    if not module:
        return ()
    from batchbridge.kit.versions import holds

    if not holds(versions, version):
        return ()
    rows: Iterable[Rule[Any]] = importlib.import_module(f"batchbridge_history.{module}").ROWS
    return rows
