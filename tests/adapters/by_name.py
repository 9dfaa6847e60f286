"""Tests of real frameworks that run by name only, marked `by_hand`: which passed, and with which code of ours.

Where BATCHBRIDGE_RECORD=1 asks for it, each one that passes is kept in `passed.json` beside it, with the digests of our
code; `test_passed_by_name.py` holds the file against the tests that there are and the code as it is now.
"""

from __future__ import annotations

import ast
import fcntl
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
MARK = "by_hand"


def digests() -> ModuleType:
    """tests/equivalence/native/digests.py."""
    spec = importlib.util.spec_from_file_location("digests", HERE.parent / "equivalence" / "native" / "digests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(framework: str) -> dict[str, str]:
    """Module -> digest, of our code that acts on a run of a framework, and of what measures it."""
    taken = digests()
    return {**taken.digests(framework), **taken.measuring(framework)}


def keep(item: pytest.Item) -> None:
    """A test that passed. It belongs to a framework's folder `native`."""
    folder = item.path.parent
    framework = folder.parent.name
    version, now = importlib.metadata.version(framework), code(framework)
    with (folder / "passed.json").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # pytest's other process may keep one, too
        file.seek(0)
        kept: dict[str, Any] = json.loads(file.read() or "{}")
        if kept.get(version, {}).get("code") != now:
            kept[version] = {"code": now, "passed": []}  # with other code it says nothing
        kept[version]["passed"] = sorted({*kept[version]["passed"], f"{item.path.name}::{item.name}"})
        file.truncate(0)
        file.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def wanted() -> bool:
    """Whether what passes is to be kept."""
    return os.environ.get("BATCHBRIDGE_RECORD") == "1"


def marked(folder: Path) -> set[str]:
    """`file::function` of the tests in a folder that run by name only, or with some of their parameters."""
    return {f"{file.name}::{name}" for file in sorted(folder.glob("test_*.py")) for name in _marked(file)}


def _marked(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    whole = any(isinstance(node, ast.Assign) and _names(node) and MARK in ast.unparse(node) for node in tree.body)
    for node in tree.body:
        is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if is_test and (whole or any(MARK in ast.unparse(each) for each in node.decorator_list)):
            yield node.name


def _names(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
