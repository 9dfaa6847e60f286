"""Settings and defaults that a framework's own files declare, read as text: where its version is newer than the tables.

Declarations are compared as they are written (`1e-06`, `field(default=True, ...)` counts as `True`), never evaluated;
nothing is imported. Standard library only.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

NAMED = 6
"""Settings of one kind that a message names."""
UNSET = "no default"


def of_classes(file: Path, names: Sequence[str]) -> dict[str, str]:
    """Field to default of the dataclasses `names` in a Python file; a later class of `names` counts before an earlier.

    Empty where the file cannot be read.
    """
    found: dict[str, str] = {}
    classes = {node.name: node for node in _body(file) if isinstance(node, ast.ClassDef)}
    for name in names:
        for node in classes[name].body if name in classes else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = UNSET if node.value is None else ast.unparse(_default(node.value))
    return found


def of_arguments(file: Path) -> dict[str, str]:
    """Option to default of every `add_argument("--option", ...)` in a Python file; a flag's is its action."""
    found = {}
    for node in ast.walk(ast.Module(_body(file), [])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            said = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg is not None}
            for option in node.args:
                if isinstance(option, ast.Constant) and str(option.value).startswith("--"):
                    found[str(option.value).removeprefix("--")] = said.get("default", said.get("action", UNSET))
    return found


def difference(known: Mapping[str, str], have: Mapping[str, str]) -> str:
    """The settings that `have` adds, lacks and has with another default than `known`, as text; empty where nothing."""
    added = [f"{name} ({have[name]})" for name in have if name not in known]
    gone = [name for name in known if name not in have]
    changed = [
        f"{name} ({have[name]}, was {known[name]})" for name in have if known.get(name, have[name]) != have[name]
    ]
    parts = (("adds", added), ("no longer has", gone), ("has other defaults for", changed))
    return "; ".join(f"{what} {_listed(names)}" for what, names in parts if names)


def recorded(text: bytes | str) -> dict[str, str]:
    """The content of an adapter's `declared.json`: setting to default, as the tables' newest version declares it."""
    made: dict[str, str] = json.loads(text)["declared"]
    return made


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _default(value: ast.expr) -> ast.expr:
    """The default inside `field(default=...)` or `field(default_factory=...)`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        said: Iterator[ast.expr] = (word.value for word in value.keywords if word.arg in ("default", "default_factory"))
        return next(said, ast.Constant(UNSET))
    return value


def _body(file: Path) -> list[ast.stmt]:
    try:
        return ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []


def merged(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Declarations of several files; a later one counts before an earlier."""
    found: dict[str, str] = {}
    for part in parts:
        found |= part
    return found
