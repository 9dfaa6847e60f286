"""Which package of ours may import which."""

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


def test_the_reader_of_scripts_knows_nothing_of_batchbridge() -> None:
    files = sorted((ROOT / "src" / "bashread").glob("*.py"))
    assert files
    for file in files:
        assert not {name for name in imported(file) if name.startswith("batchbridge")}, file.name


def test_the_core_imports_no_adapter_and_no_framework() -> None:
    files = sorted((ROOT / "src" / "batchbridge").rglob("*.py"))
    assert files
    for file in files:
        others = imported(file) & {"trl", "verl", "openrlhf", "open_instruct"}
        others |= {name for name in imported(file) if name.startswith("batchbridge_")}
        assert not others, f"{file.relative_to(ROOT)}: {others}"
