"""Hook of `batchbridge run`: every driver that a command builds is wrapped before it trains."""

from __future__ import annotations

from types import ModuleType

from batchbridge.kit import follow_before


def driver(module: ModuleType) -> None:
    """Called after `pocketray` is imported."""
    follow_before(module.Driver, "train")
