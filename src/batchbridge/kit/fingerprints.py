"""Digests of functions as they stand in a package's files, so that code is told by its text and not by a version.

A function's digest is that of its text, decorators included, comments and blank lines aside. Nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from batchbridge.contract.evidence import FunctionsByFile, Package

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def of_package(
    package: Package, folder: Path | None, known: Mapping[str, Container[str]] | None = None
) -> dict[str, str]:
    """The digests of a package's functions, empty where one is missing; see `digests`. folder: None where the package
    is not there."""
    if folder is None:
        return {f"{file}: {name}": "" for file, names in package.functions.items() for name in names}
    return digests(folder, package.functions, known or {})


def digests(
    package: Path, functions: FunctionsByFile, known: Mapping[str, Container[str]] = MappingProxyType({})
) -> dict[str, str]:
    """`file: function` -> digest; empty text where a file of `package` or a function of it is missing.

    known: digests that are on record, by `file: function`. A file whose functions are all known by their indentation
    is not parsed, which would take as long as a whole check of a configuration.
    """
    found: dict[str, str] = {}
    for file, names in functions.items():
        recorded = {name: known.get(f"{file}: {name}", ()) for name in names}
        if any(recorded.values()) and (seen := _recognised(package / file, recorded)) is not None:
            found |= {f"{file}: {name}": digest for name, digest in seen.items()}
            continue
        try:
            status = (package / file).stat()
            every = _digests_in(package / file, status.st_mtime_ns, status.st_size)
        except OSError:
            every = {}
        found |= {f"{file}: {name}": every.get(name, "") for name in names}
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


def _recognised(file: Path, known: Mapping[str, Container[str]]) -> dict[str, str] | None:
    """The digests of functions that all stand in a file as they are known; None where one does not, or not surely."""
    try:
        text = f"\n{file.read_text(encoding='utf-8')}"
    except (OSError, ValueError):
        return None
    if "\f" in text:  # a line may begin behind one, too
        return None
    scopes: dict[str, _Scope | None] = {"": (module := _Scope(text, "", 0, len(text)))}
    found = {}
    for name, recorded in known.items():
        owner, _, called = name.rpartition(".")
        if owner not in scopes:
            scopes[owner] = module.of_class(owner)
        scope = scopes[owner]
        block = None if scope is None else scope.function(called)
        if block is None and f"def {called}" in text and re.search(rf"def {called}\W", text):
            return None
        if (digest := _digest(block.splitlines()) if block else "") not in recorded:
            return None
        found[name] = digest
    return found


_BEGINNING = r"\n(?={0}[^\s#)\]}}])(?:{0}(?:async )?((?:def|class) \w+)[(:])?"
"""The beginning of something new at an indentation: a line not deeper, blank, a comment or a closing bracket."""


class _Scope:
    """A module's text, or a class's: where its parts begin, by their indentation, and which are functions, classes."""

    def __init__(self, text: str, indent: str, start: int, end: int) -> None:
        self._text, self._indent = text, indent
        self._places: list[int] = []
        self._named: dict[str, list[int]] = {}
        for match in re.compile(_BEGINNING.format(indent)).finditer(text, start, end):
            if match[1]:
                self._named.setdefault(match[1], []).append(len(self._places))
            self._places.append(match.start() + 1)
        self._places.append(end)

    def of_class(self, name: str) -> _Scope | None:
        """The inside of a class; None where there is none, or several."""
        found = self._named.get(f"class {name}", ())
        return _Scope(self._text, "    ", *self._places[found[0] : found[0] + 2]) if len(found) == 1 else None

    def function(self, name: str) -> str | None:
        """A function, decorators included; None where there is none, or several places may be meant."""
        found = self._named.get(f"def {name}", ())
        if len(found) != 1:
            return None
        first = found[0]
        while first and self._text.startswith(f"{self._indent}@", self._places[first - 1]):
            first -= 1
        before = self._text[self._places[first - 1] : self._places[first]] if first else ""
        above = (line for line in map(str.lstrip, reversed(before.splitlines())) if line and not line.startswith("#"))
        if next(above, "").startswith(('"""', "'''")):
            return None  # perhaps the end of a decorator's text, whose lines may begin anywhere
        return self._text[self._places[first] : self._places[found[0] + 1]]


def _digest(lines: Sequence[str]) -> str:
    import hashlib  # it brings OpenSSL

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
