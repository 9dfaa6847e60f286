"""Names of classes and of aliases of types: each exists once in what is shipped, so that it says which one is meant."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = ("src", "adapters", "plugins/*/src")
CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*|[A-Z]\d?")
FORBIDDEN = frozenset(("Said", "Told", "Given"))
"""Words that only this house used for settings and values."""


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of public classes and aliases on top of a module."""
    for node in tree.body:
        names = [node.name] if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        elif isinstance(node, ast.TypeAlias) if hasattr(ast, "TypeAlias") else False:
            names = [node.name.id]  # type: ignore[attr-defined]  # from Python 3.12 on
        yield from (name for name in names if CAMEL_CASE.fullmatch(name) and not name.startswith("_"))


def twice(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Name to the places that define it, where there are several; a source is (place, text)."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for place, text in sources:
        for name in defined(ast.parse(text)):
            if len(name) > 2:  # type variables
                places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def shipped(root: Path) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for file in sorted(path for base in root.glob(folder) for path in base.rglob("*.py")):
            yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")


def test_a_public_class_or_alias_name_exists_once() -> None:
    sources = list(shipped(Path(__file__).parents[2]))
    assert len(sources) > 300
    assert twice(sources) == {}


def test_no_class_has_a_word_that_only_this_house_uses() -> None:
    sources = shipped(Path(__file__).parents[2])
    assert [(place, name) for place, text in sources for name in defined(ast.parse(text)) if name in FORBIDDEN] == []


def test_a_second_one_is_noticed() -> None:
    one, two = "class Watch: ...\nT = 1\n", "from typing import Any\n\nWatch = dict[str, Any]\n_Own = int\nT = 2\n"
    assert twice([("a.py", one), ("b.py", two)]) == {"Watch": ["a.py", "b.py"]}
    assert twice([("a.py", one), ("b.py", "from a import Watch\n\nEMPTY = Watch()\n")]) == {}
