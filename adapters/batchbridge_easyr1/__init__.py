"""EasyR1 for BatchBridge. Importing this module imports neither EasyR1 nor anything else that takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge import Adapter


batchbridge_frameworks = ("easyr1",)
"""The frameworks of this adapter, so that commands on other frameworks need not ask the hook below. Read by
`batchbridge.contract.plugins`."""


@hookimpl
def batchbridge_adapters() -> list[type[Adapter]]:
    """The adapter of framework `easyr1`."""
    from batchbridge_easyr1.config import EasyR1Adapter

    return [EasyR1Adapter]
