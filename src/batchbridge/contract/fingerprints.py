"""Digests of functions as they stand in a package's files, so that code is told by its text and not by a version.

A function's digest is that of its text, decorators included, comments and blank lines aside. Nothing is imported.
Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

Functions = Mapping[str, Sequence[str]]
"""File of a package -> functions in it, methods as `Class.method`."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def digests(package: Path, functions: Functions) -> dict[str, str]:
    """`file: function` -> digest; empty text where a file of `package` or a function of it is missing."""
    found: dict[str, str] = {}
    for file, names in functions.items():
        try:
            status = (package / file).stat()
            known = _digests_in(package / file, status.st_mtime_ns, status.st_size)
        except OSError:
            known = {}
        found |= {f"{file}: {name}": known.get(name, "") for name in names}
    return found


@lru_cache(maxsize=128)
def _digests_in(file: Path, changed_ns: int, size: int) -> Mapping[str, str]:
    """Every function of a file, as it is now; a trainer is wrapped more often than its framework changes."""
    try:
        text = file.read_text(encoding="utf-8")
        defined = _defined(ast.parse(text))
    except (OSError, ValueError, SyntaxError):
        return {}
    lines = text.splitlines()
    return {name: _digest(lines[_first(node) - 1 : node.end_lineno]) for name, node in defined.items()}


def _digest(lines: Sequence[str]) -> str:
    stripped = (line.rstrip() for line in lines)
    kept = "\n".join(line for line in stripped if line and not line.lstrip().startswith("#"))
    return hashlib.blake2b(kept.encode(), digest_size=8).hexdigest()


def _first(node: _Function) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _defined(module: ast.Module) -> dict[str, _Function]:
    found: dict[str, _Function] = {}
    for node in module.body:
        if isinstance(node, _Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, _Function)}
    return found
