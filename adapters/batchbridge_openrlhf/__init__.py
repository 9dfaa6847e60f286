"""OpenRLHF's PPO for BatchBridge. Importing this module imports neither OpenRLHF nor anything else that takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge import Adapter


batchbridge_frameworks = ("openrlhf",)
"""The frameworks of this adapter, so that commands on other frameworks need not ask the hook below. Read by
`batchbridge.contract.plugins`."""


@hookimpl
def batchbridge_adapters() -> list[type[Adapter]]:
    """The adapter of framework `openrlhf`."""
    from batchbridge_openrlhf.config import OpenRlhfAdapter

    return [OpenRlhfAdapter]
