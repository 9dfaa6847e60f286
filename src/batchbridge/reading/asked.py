"""The words that the commands have for devices and versions (`--gpus`, `--framework-version`), in Python.

Its own file: `read` and everything that reads a source take them, and few calls use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class AskedFor(NamedTuple):
    """The arguments of `read` that other words may say: the version of the source's framework, devices that train the
    policy, and the environment variables of a launch script."""

    version: str | None
    world_size: int | None
    env: Mapping[str, str] | None


def asked_for(
    version: str | None,
    framework_version: str | None,
    world_size: int | None,
    nodes: int | None,
    gpus: int | None,
    env: Mapping[str, str] | None = None,
) -> AskedFor:
    """The arguments of `read`. nodes: nodes (default 1) of gpus devices each, instead of world_size; a launch script's
    own variables for the two become these numbers, too. Raises TypeError: two words for one thing; ValueError: a size
    is below 1, or the devices of the nodes are missing."""
    if version is not None and framework_version is not None:
        raise TypeError("version and framework_version are the same: give one of them")
    version = framework_version if version is None else version
    if nodes is None and gpus is None:
        return AskedFor(version, world_size, env)
    if world_size is not None:
        raise TypeError("world_size says the devices, or nodes and gpus do: give one of them")
    if gpus is None:
        raise ValueError(f"nodes = {nodes}: gpus, the devices of each node, are missing")
    for name, size in (("nodes", nodes), ("gpus", gpus)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
            raise TypeError(f"{name}: expected int, not {type(size).__name__}")
        if size is not None and size < 1:
            raise ValueError(f"{name} = {size}: must be at least 1")
    said = {"--nodes": str(nodes or 1), "--gpus": str(gpus)}
    return AskedFor(version, (nodes or 1) * gpus, said | dict(env or {}))
