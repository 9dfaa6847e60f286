"""Packages whose names are loaded when they are first used. Standard library only.

Its own file: packages import it before anything else.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def loader(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package: its names are those that it imports for type checkers.

    They are said once, `if TYPE_CHECKING`: the package's text is read when a name, or `__all__`, is first asked for.
    """

    @cache
    def homes() -> dict[str, str]:
        import ast
        import sys
        from pathlib import Path

        text = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        declared = next(node for node in ast.parse(text).body if isinstance(node, ast.If))
        imports = [node for node in declared.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module or "" for node in imports for alias in node.names}

    def get(name: str) -> Any:
        import importlib

        if name == "__all__":
            return sorted(homes())
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes()[name]), name)

    return get, lambda: sorted(homes())
