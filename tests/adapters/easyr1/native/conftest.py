"""The checkout of EasyR1 that BATCHBRIDGE_EASYR1 names, and where its finished runs are kept."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]


@pytest.fixture(scope="session")
def checkout() -> Path:
    named = os.environ.get("BATCHBRIDGE_EASYR1")
    if not named:
        pytest.skip("BATCHBRIDGE_EASYR1 names no checkout of EasyR1")
    return Path(named).absolute()


@pytest.fixture(scope="session")
def release(checkout: Path) -> str:
    """The release that the checkout calls itself."""
    found = re.search(r'__version__ = "(.+)"', (checkout / "verl" / "__init__.py").read_text(encoding="utf-8"))
    assert found, "the checkout names no release"
    return found[1]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: Ray's sockets have paths of at most 107 bytes. `BATCHBRIDGE_EASYR1_RUNS`: a folder that keeps finished
    runs, for work on a single test and for `keep_figures.py`."""
    kept = os.environ.get("BATCHBRIDGE_EASYR1_RUNS")
    return tmp_path_factory.mktemp("e") if kept is None else Path(kept)
