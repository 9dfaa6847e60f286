"""Ways to make a run train something else, or end falsely, and the tests that hold each on each framework: the named
tests exist, and run in some session. tamperings.json: what -> framework -> tests; in brackets the case of a table; a
text in the place of tests says why there is none. "every framework" has tests of what all adapters share, beside."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

CASES: dict[str, dict[str, list[str] | str]] = json.loads(
    Path(__file__).with_name("tamperings.json").read_text(encoding="utf-8")
)
EVERYWHERE = "every framework"
FRAMEWORKS = {"trl", "verl", "openrlhf", "easyr1", "open_instruct"}


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
def test_every_framework_has_tests_or_a_reason(repository: Path, case: str) -> None:
    assert FRAMEWORKS <= CASES[case].keys() <= FRAMEWORKS | {EVERYWHERE}
    tests = [named for cell in CASES[case].values() if not isinstance(cell, str) for named in cell]
    assert tests, "a case without a test"
    assert all(CASES[case].values()), "a framework without a test or a reason"
    found = [missing(repository, named) for named in tests]
    assert [why for why in found if why] == []


@pytest.mark.parametrize(
    "named",
    [
        "tests/repository/test_nowhere.py::test_one",
        "tests/repository/test_tamperings.py::test_that_nobody_wrote",
        "tests/repository/test_tamperings.py::test_every_framework_has_tests_or_a_reason[" + "no such case]",
    ],
)
def test_a_test_that_is_gone_is_told(repository: Path, named: str) -> None:
    assert missing(repository, named) is not None
