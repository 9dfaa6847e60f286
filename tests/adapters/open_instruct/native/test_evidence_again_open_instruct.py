"""The recorded answers of Open-Instruct's own functions, asked of the checkout again: it gives the same, by the same
code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke
TESTS = Path(__file__).parents[1] / "test_evidence_open_instruct.py"


def test_the_checkouts_functions_answer_as_recorded(checkout: Path) -> None:
    paths = [str(checkout), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    words = ("-q", "-p", "no:cacheprovider", "-W", "default", "-k", "recorded", str(TESTS))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "is not installed" not in done.stdout, "answers were replayed, and nothing was asked"
