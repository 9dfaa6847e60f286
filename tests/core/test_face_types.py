"""What a type checker sees of `import batchbridge`. mypy is in the environment of the lint session, which runs this."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed: `nox -s lint` runs this file")

ROOT = Path(__file__).parents[2]


def mypy(code: str, folder: Path) -> str:
    """What `mypy --strict` says of a module of a user's."""
    (folder / "user.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, str(folder / "user.py")], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def test_a_misspelt_import_is_an_error(tmp_path: Path) -> None:
    assert 'Module "batchbridge" has no attribute "wrp_misspelt"' in mypy(
        "from batchbridge import wrp_misspelt\n", tmp_path
    )


def test_signatures_are_the_real_ones(tmp_path: Path) -> None:
    said = mypy(
        "import batchbridge\n"
        "for one in (batchbridge.read, batchbridge.convert, batchbridge.check, batchbridge.Spec):\n    pass\n"
        "reveal_type(batchbridge.read('a.yaml'))\n"
        "reveal_type(batchbridge.convert('a.yaml', 'verl'))\n"
        "reveal_type(batchbridge.diff('a.yaml', 'b.yaml'))\n"
        "reveal_type(batchbridge.check('a.yaml').findings)\n"
        "reveal_type(batchbridge.doctor('text'))\n"
        "reveal_type(batchbridge.__version__)\n",
        tmp_path,
    )
    for kind in (
        "contract.reading.Reading",
        "comparing.convert.Conversion",
        "comparing.comparison.Comparison",
        "tuple[batchbridge.meaning.findings.Finding, ...]",
        "batchbridge.diagnosis.Diagnoses",
        'is "str"',
    ):
        assert kind in said
    assert "error" not in said, said


def test_a_wrong_argument_is_an_error(tmp_path: Path) -> None:
    assert "error" in mypy("import batchbridge\n\nbatchbridge.read('a.yaml', world_size='8')\n", tmp_path)
