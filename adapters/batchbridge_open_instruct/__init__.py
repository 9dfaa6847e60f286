"""Open-Instruct's GRPO and PPO scripts for BatchBridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge import Adapter


batchbridge_frameworks = ("open_instruct",)
"""The frameworks of this adapter, so that commands on other frameworks need not ask the hook below. Read by
`batchbridge.contract.plugins`."""


@hookimpl
def batchbridge_adapters() -> list[type[Adapter]]:
    """The adapter of framework `open_instruct`."""
    from batchbridge_open_instruct.config import OpenInstructAdapter

    return [OpenInstructAdapter]
