"""What only old versions of frameworks refused, for those who still pin or vendor one: a plugin of its own.

Each module has the rows of one framework; `check` of it is asked when a reading of that framework is there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from batchbridge import Finding, Reading, hookimpl

FRAMEWORKS = ("verl",)
"""Frameworks that have a module here, of the same name."""


@hookimpl
def batchbridge_check(reading: Reading) -> Iterable[Finding]:
    """The rows that a reading under an old version breaks."""
    if reading.framework not in FRAMEWORKS:
        return ()
    found: Iterable[Finding] = importlib.import_module(f"batchbridge_history.{reading.framework}").check(reading)
    return found
