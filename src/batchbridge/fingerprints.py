"""Digests of a checkout's functions, for frameworks whose version says little about their code.

A function's digest is that of its text, comments and blank lines aside; `SEAMS` of an adapter lists those that its
running trainer patches, replaces or relies upon. Nothing is imported. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

NAMED = 4
"""Functions that `difference` names."""


def digests(package: Path, seams: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """`file: function` -> digest; empty text where a file of `package` or a function of it is missing.

    seams: file of the package -> functions, methods as `Class.method`.
    """
    found = {}
    for file, names in seams.items():
        try:
            text = (package / file).read_text(encoding="utf-8")
            functions = _functions(ast.parse(text))
        except (OSError, ValueError, SyntaxError):
            text, functions = "", {}
        lines = text.splitlines()
        for name in names:
            node = functions.get(name)
            source = [] if node is None else [line.rstrip() for line in lines[node.lineno - 1 : node.end_lineno]]
            kept = "\n".join(line for line in source if line and not line.lstrip().startswith("#"))
            found[f"{file}: {name}"] = hashlib.blake2b(kept.encode(), digest_size=8).hexdigest() if kept else ""
    return found


def difference(have: Mapping[str, str], proven: Mapping[str, str]) -> str:
    """The functions whose digests in `have` are not those of `proven`, as text; empty where there are none."""
    other = sorted(seam for seam, digest in proven.items() if have.get(seam) != digest)
    more = f" and {len(other) - NAMED} more" if len(other) > NAMED else ""
    return f"{', '.join(other[:NAMED])}{more}"


def _functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    found = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            inner = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            found |= {f"{node.name}.{one.name}": one for one in inner}
    return found
