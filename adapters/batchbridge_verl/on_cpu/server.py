"""The server of the backend `scripted`: a process of its own, which imports neither torch nor verl.

Its own file: Ray starts a process for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any


class ScriptedServer:
    """Answers every call of verl's server handle; is asked for no tokens. workers: those that it has send weights."""

    def __init__(self, workers: Sequence[Any] = ()) -> None:
        self._workers = workers

    async def wake_up(self) -> None:
        await asyncio.gather(*(worker.wake_up.remote() for worker in self._workers))

    async def sleep(self) -> None:
        await asyncio.gather(*(worker.sleep.remote() for worker in self._workers))

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def abort_all_requests(self, **options: Any) -> None: ...

    async def resume_generation(self) -> None: ...

    async def start_profile(self, **options: Any) -> None: ...

    async def stop_profile(self) -> None: ...
