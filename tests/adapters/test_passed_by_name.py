"""What runs by name only has passed, with the code as it is now."""

from __future__ import annotations

import json
from pathlib import Path

import by_name
import pytest

HERE = Path(__file__).parent
FOLDERS = [folder for folder in sorted(HERE.glob("*/native")) if by_name.marked(folder)]


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.parent.name)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_every_test_that_runs_by_name_only_has_passed(folder: Path) -> None:
    kept = json.loads((folder / "passed.json").read_text(encoding="utf-8"))
    passed = {name.partition("[")[0] for version in kept.values() for name in version["passed"]}
    assert passed >= by_name.marked(folder), "run them in the session that has them, with BATCHBRIDGE_RECORD=1"


def test_it_passed_with_the_code_as_it_is_now(folder: Path) -> None:
    now = by_name.code(folder.parent.name)
    for version, kept in json.loads((folder / "passed.json").read_text(encoding="utf-8")).items():
        changed = by_name.digests().changed(kept["code"], now)
        assert not changed, f"{version}: {', '.join(changed)} changed since they ran by name"


def test_a_test_that_is_marked_is_asked_for(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.by_hand\ndef test_a(): ...\ndef test_b(): ...\n"
    (tmp_path / "test_x.py").write_text(text, encoding="utf-8")
    (tmp_path / "test_y.py").write_text("pytestmark = pytest.mark.by_hand\ndef test_c(): ...\n", encoding="utf-8")
    some = "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.by_hand)])\ndef test_d(x): ...\n"
    (tmp_path / "test_z.py").write_text(some, encoding="utf-8")
    assert by_name.marked(tmp_path) == {"test_x.py::test_a", "test_y.py::test_c", "test_z.py::test_d"}
