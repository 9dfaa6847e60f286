"""The question that `batchbridge check --native` puts to a framework itself: what an adapter says about it.

Its own file: adapters give it, and commands and the child process take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class NativeCheck:
    """The construction of a framework's own configuration object, asked for by an adapter.

    place: the function that constructs it, `module:NAME`. It is called in a child process as `function(settings,
    world_size)` and raises what the framework raises. It calls the framework's own code alone: whatever in `settings`
    names a module, a class or a file of the user's is left out by the adapter. settings: what is said to it, JSON
    types. installed: the framework's version in this environment; None: it is not installed. differences: what is said
    otherwise than the user does, because there is no device and no network, as sentences.
    """

    place: str
    settings: Mapping[str, Any]
    installed: str | None
    world_size: int | None = None
    differences: tuple[str, ...] = ()
