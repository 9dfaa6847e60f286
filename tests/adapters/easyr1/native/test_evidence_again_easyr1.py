"""The recorded answers of EasyR1's own functions, asked of the checkout again: it gives the same, by the same code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke
TESTS = Path(__file__).parents[1] / "test_evidence_easyr1.py"


def test_the_checkouts_functions_answer_as_recorded(checkout: Path, release: str) -> None:
    if release != "0.3.3.dev0":
        pytest.skip(f"answers are recorded of 0.3.3.dev0 (b44b311), the checkout is {release}")
    paths = [str(checkout), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", str(TESTS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "is not installed" not in done.stdout, "answers were replayed, and nothing was asked"
