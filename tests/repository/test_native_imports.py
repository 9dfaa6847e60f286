"""Native tests and their scripts import names that exist: no type checker reads them, and where a framework has no
checkout here, nothing runs them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules(root: Path) -> dict[str, list[Path]]:
    """Every module that tests may import by a name of ours, with its files: those of two folders may share a name."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for base in (root / "src", root / "adapters", root / "tests" / "on_cpu", *sorted(root.glob("plugins/*/src"))):
        for file in sorted(base.rglob("*.py")):
            parts = file.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)].append(file)
    for file in sorted((root / "tests").rglob("*.py")):
        if "on_cpu" not in file.relative_to(root / "tests").parts:
            found[file.stem].append(file)
    return found


def names(file: Path) -> set[str]:
    """What a module's top level defines or imports; "*" where it decides that when it is asked."""
    found: set[str] = set()
    for node in _statements(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add("*" if node.name == "__getattr__" else node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        else:
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
            found |= {each.id for each in stored}
    return found


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in (
            ("body", "orelse", "handlers", "finalbody") if isinstance(node, (ast.If, ast.Try, ast.With)) else ()
        ):
            inner = getattr(node, part, [])
            for each in inner:
                yield from _statements(each.body if isinstance(each, ast.ExceptHandler) else [each])


def missing(file: Path, known: Mapping[str, Sequence[Path]]) -> Iterator[str]:
    """The names that a file imports from a module of ours, and that no such module has: the nearest folder's first."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                homes = [names(home) for home in known[node.module]]
                if f"{node.module}.{alias.name}" in known or any({"*", alias.name} & home for home in homes):
                    continue
                yield f"{node.module}.{alias.name}"


def test_every_name_that_a_native_test_imports_exists() -> None:
    known = modules(ROOT)
    files = [file for file in sorted((ROOT / "tests").rglob("*.py")) if "native" in file.parts]
    assert len(files) > 150
    found = {file.relative_to(ROOT).as_posix(): gone for file in files if (gone := list(missing(file, known)))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("from started import version_of", ["started.version_of"]),
        ("from started import fit", []),
        ("def f():\n    from started import nothing", ["started.nothing"]),
        ("from torch import nothing", []),
    ],
)
def test_a_name_that_was_taken_away_is_found(text: str, gone: list[str], tmp_path: Path) -> None:
    (tmp_path / "started.py").write_text("try:\n    import x\nexcept ImportError:\n    x = None\ndef fit(): ...\n")
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    assert list(missing(tmp_path / "test_it.py", {"started": [tmp_path / "started.py"]})) == gone
