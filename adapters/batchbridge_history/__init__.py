"""What old versions of frameworks refused: TRL before 0.18, verl before 0.6, OpenRLHF before 0.9.

Nobody starts such a run today, but people still pin these versions, and forks carry them. A plugin like any third
party's: it reads nothing, and asks its rows about readings of those versions alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge import Finding, Reading

ROWS = {"trl": ("trl", "<0.18"), "open_r1": ("trl", "<0.18"), "verl": ("verl", "<0.6.0")}
"""Framework to the module here with its rows, and the versions that they are about."""


@hookimpl
def batchbridge_check(reading: Reading) -> Iterable[Finding]:
    """What the reading's framework refused in its version."""
    module, versions = ROWS.get(reading.framework, ("", ""))
    if not module or reading.framework_version is None:
        return ()
    from batchbridge.kit.versions import holds

    if not holds(versions, reading.framework_version):
        return ()
    found: Iterable[Finding] = importlib.import_module(f"batchbridge_history.{module}").check(reading)
    return found
