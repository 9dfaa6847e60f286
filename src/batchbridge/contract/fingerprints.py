"""Digests of functions as they stand in a package's files, so that code is told by its text and not by a version.

A function's digest is that of its text, decorators included, comments and blank lines aside. Nothing is imported.
Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

Functions = Mapping[str, Sequence[str]]
"""File of a package -> functions in it, methods as `Class.method`."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def digests(
    package: Path, functions: Functions, known: Mapping[str, Container[str]] = MappingProxyType({})
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
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    heads: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        if "def " in line or line.startswith("class "):
            heads.setdefault(line.partition("(")[0].partition(":")[0], []).append(at)
    named = {head.rpartition("def ")[2].strip() for head in heads}
    found = {}
    for name, recorded in known.items():
        owner, _, called = name.rpartition(".")
        block = _block(lines, heads, owner, called) if called in named else []
        if block is None or (digest := _digest(block) if block else "") not in recorded:
            return None
        found[name] = digest
    return found


def _block(lines: list[str], heads: Mapping[str, list[int]], owner: str, called: str) -> list[str] | None:
    """The lines of a function, decorators included, by its indentation; None where several places may be meant."""
    start, end, indent = 0, len(lines), "    " if owner else ""
    if owner:
        classes = heads.get(f"class {owner}", [])
        if len(classes) != 1:
            return None
        start = classes[0] + 1
        end = next((at for at in range(start, end) if lines[at][:1].isidentifier()), end)
    places = [*heads.get(f"{indent}def {called}", ()), *heads.get(f"{indent}async def {called}", ())]
    places = [at for at in places if start <= at < end]
    if len(places) != 1:
        return None
    first = last = places[0]
    for at in range(first - 1, start - 1, -1):
        if lines[at].startswith(f"{indent}@"):
            first = at
        elif not _continues(lines[at], indent):
            break
    before = (line.lstrip() for line in reversed(lines[start:first]))
    above = next((line for line in before if line and not line.startswith("#")), "")
    if above.startswith(('"""', "'''")):  # perhaps the end of a decorator's text, whose lines may begin anywhere
        return None
    while last + 1 < end and _continues(lines[last + 1], indent):
        last += 1
    return lines[first : last + 1]


def _continues(line: str, indent: str) -> bool:
    """Whether a line begins nothing new at `indent`: it is deeper, blank, a comment or a closing bracket."""
    return not line.strip() or line.startswith((f"{indent} ", f"{indent}\t")) or line.lstrip()[0] in "#)]}"


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
