"""Packages whose names are loaded when they are first used. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def loader(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    package: its name. homes: module below `batchbridge` -> the names that come from it.
    """
    home = {name: module for module, those in homes.items() for name in those}

    def get(name: str) -> Any:
        import importlib

        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"batchbridge.{home[name]}"), name)

    return get, lambda: sorted(home)
