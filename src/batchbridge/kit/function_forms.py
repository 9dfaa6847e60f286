"""Digests of functions by their form: the syntax tree, without docstrings, annotations and layout.

People's copies are formatted by other tools and commented in other words; what a function does is the same. Nothing is
imported. For code that is patched, `batchbridge.kit.fingerprints` compares the text.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_LEFT_OUT = frozenset({"annotation", "ctx", "kind", "returns", "type_comment", "type_params"})
MAX_BYTES = 4 << 20


def forms_in(package: Path, functions: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """`file: function` -> digest of the functions of a package's files, empty text where one is missing."""
    found: dict[str, str] = {}
    for file, names in functions.items():
        have = _forms(package / file, frozenset(names))
        found |= {f"{file}: {name}": have.get(name, "") for name in names}
    return found


def _forms(file: Path, names: frozenset[str]) -> dict[str, str]:
    try:
        if file.stat().st_size > MAX_BYTES:
            return {}
        body = ast.parse(file.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return {name: form(node) for name, node in _defined(body) if name in names}


def _defined(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{one.name}", one


def form(node: ast.AST) -> str:
    """The digest of a function, alike under every Python that parses it."""
    told = hashlib.blake2b(digest_size=8)
    for part in _told(node):
        told.update(part.encode("utf-8", "replace") + b"\0")
    return told.hexdigest()


def _told(node: object) -> Iterator[str]:
    if isinstance(node, list):
        yield "["
        for one in node:
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):  # a docstring, say
                yield from _told(one)
        yield "]"
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _told(ast.Assign(targets=[node.target], value=node.value))
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name not in _LEFT_OUT and value is not None and value != []:
                yield name
                yield from _told(value)
    else:
        yield repr(node)
