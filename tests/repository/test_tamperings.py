"""Ways to make a run train something else, or end falsely, and the tests that hold each on each framework: the named
tests exist, and run in some session. tamperings.json: what -> framework -> tests; in brackets the case of a table."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

CASES: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("tamperings.json").read_text(encoding="utf-8")
)
EVERYWHERE = "every framework"
FRAMEWORKS = {"trl", "verl", "openrlhf", "easyr1", "open_instruct", EVERYWHERE}


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


def missing(repository: Path, named: str) -> str | None:
    """Why a named test is not there; None where it is."""
    path, _, test = named.partition("::")
    file = repository / path
    if not file.is_file():
        return f"{path}: no such file"
    test, _, case = test.rstrip("]").partition("[")
    if test.startswith("test_") and test not in functions(file):
        return f"{path}: no {test}"
    # A case stands in the test's file, or in what the test runs beside it.
    beside = [file, *(one for one in file.parent.glob("*.py") if not one.name.startswith("test_"))]
    if case and not any(f'"{case}"' in one.read_text("utf-8") for one in beside):
        return f"{path}: no case {case}"
    return None


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_tests_that_are_there(repository: Path, case: str) -> None:
    assert CASES[case], "a case without a test"
    assert all(CASES[case].values()), "a framework without a test"
    assert set(CASES[case]) <= FRAMEWORKS
    found = [missing(repository, named) for tests in CASES[case].values() for named in tests]
    assert [why for why in found if why] == []


@pytest.mark.parametrize(
    "named",
    [
        "tests/repository/test_nowhere.py::test_one",
        "tests/repository/test_tamperings.py::test_that_nobody_wrote",
        "tests/repository/test_tamperings.py::test_every_case_has_tests_that_are_there[" + "no such case]",
    ],
)
def test_a_test_that_is_gone_is_told(repository: Path, named: str) -> None:
    assert missing(repository, named) is not None
