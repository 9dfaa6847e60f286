"""TRL's GRPO for BatchBridge. Importing this module imports neither TRL nor anything else that takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchbridge import hookimpl

if TYPE_CHECKING:
    from batchbridge import Adapter


batchbridge_frameworks = ("trl",)
"""The frameworks of this adapter, so that commands on other frameworks need not ask the hook below. Read by
`batchbridge.contract.plugins`."""


@hookimpl
def batchbridge_adapters() -> list[type[Adapter]]:
    """The adapter of framework `trl`."""
    from batchbridge_trl.config import TrlAdapter

    return [TrlAdapter]
