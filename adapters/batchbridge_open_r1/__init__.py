"""Open-R1's GRPO recipes for BatchBridge. Importing this module imports nothing that takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge import Adapter


batchbridge_frameworks = ("open_r1",)
"""The frameworks of this adapter, so that commands on other frameworks need not ask the hook below. Read by
`batchbridge.contract.plugins`."""


@hookimpl
def batchbridge_adapters() -> list[type[Adapter]]:
    """The adapter of framework `open_r1`."""
    from batchbridge_open_r1.config import OpenR1Adapter

    return [OpenR1Adapter]
