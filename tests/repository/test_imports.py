"""What the core may not import; test_house.py has our own packages."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(file: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in it and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: a relative import"
            assert node.module is not None
            found.add(node.module.partition(".")[0])
    return found


def test_the_core_imports_no_framework() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    assert files
    for file in files:
        assert not imported(file) & {"trl", "verl", "openrlhf", "open_instruct"}, str(file.relative_to(ROOT))
