"""The core imports the standard library and itself, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

CORE = (
    "briefs",
    "errors",
    "spec",
    "order",
    "plan",
    "candidates",
    "weights",
    "microbatch",
    "findings",
    "derived",
    "adapter",
    "told",
)
LIST_MODULES = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by(module: str) -> set[str]:
    """The modules that a fresh interpreter, without the site's own start-up imports, loads for `module`."""
    code = LIST_MODULES.format(module=module)
    return set(json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout))


@pytest.mark.parametrize("name", CORE)
def test_a_core_module_imports_only_the_standard_library_and_the_core(name: str) -> None:
    core = {"batchbridge", *(f"batchbridge.{core_name}" for core_name in CORE)}
    foreign = {
        module
        for module in imported_by(f"batchbridge.{name}") - core
        if module.split(".")[0] not in sys.stdlib_module_names
    }
    assert foreign == set()


def test_a_foreign_import_is_noticed() -> None:
    assert "pluggy" in imported_by("batchbridge.contract.hookspecs")


def test_numpy_is_there_and_yet_not_imported_before_it_is_needed() -> None:
    assert find_spec("numpy") is not None
    assert "numpy" not in imported_by("batchbridge.meaning.order")


@pytest.mark.parametrize("name", ["spec", "order", "plan", "weights", "microbatch"])
def test_the_meaning_does_not_reach_back_into_the_rest(name: str) -> None:
    meaning = {
        "batchbridge",
        *(f"batchbridge.{other}" for other in ("briefs", "errors", "spec", "order", "plan", "weights", "microbatch")),
    }
    ours = {module for module in imported_by(f"batchbridge.{name}") if module.split(".")[0] == "batchbridge"}
    assert ours <= meaning
