"""How much code there may be. A package that needs more gets it in a commit of its own, which names the feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import measures
import pytest

MOST = {
    "bashread": 1_953,
    "batchbridge": 21_795,
    "batchbridge_easyr1": 2_798,
    "batchbridge_history": 168,
    "batchbridge_open_instruct": 3_718,
    "batchbridge_open_r1": 79,
    "batchbridge_openrlhf": 5_342,
    "batchbridge_trl": 6_637,
    "batchbridge_verl": 7_038,
}
"""Lines of code that a package has at most. A package that has become smaller gets a smaller number."""
NEAR = 0.98
"""Of its number, a package has at least so much: a number far above says nothing."""
FOUND: Any = measures.measured()


@pytest.mark.parametrize("package", measures.PACKAGES)
def test_a_package_holds_what_it_may_and_its_number_is_near(package: str) -> None:
    count = FOUND["code"][package]
    assert count <= MOST[package], "more code: make it smaller, or raise the number in a commit that names the feature"
    assert count >= NEAR * MOST[package] - 10, f"less code: {package} has {count} now"


def test_no_file_is_too_long_to_read() -> None:
    assert FOUND[f"files above {measures.LONGEST} lines of code"] == {}


def test_what_is_to_be_understood_first_is_small() -> None:
    assert FOUND["to be understood before anything else"] <= measures.FIRST


def test_a_plugin_s_adapter_is_small() -> None:
    found = FOUND["plugins"]
    assert {name: count for name, count in found.items() if count > measures.PLUGINS[name]} == {}
    assert all(count > 0 for count in found.values())


def test_a_line_of_code_holds_something_else_than_words(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""Words."""\n\n# why\nX = (\n    1,\n)\n\n\ndef f() -> int:\n    """More."""\n    return 1  # so\n'
    )
    assert measures.lines_of_code(file) == {4, 5, 6, 9, 11}
    assert measures.lines_in_functions(file) == 2


def test_a_file_that_is_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "LONGEST", 300)
    long = measures.measured()["files above 300 lines of code"]
    assert isinstance(long, dict)
    assert "src/batchbridge/meaning/spec.py" in long
