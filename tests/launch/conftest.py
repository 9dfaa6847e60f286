"""A command line for tests of `batchbridge run` that need processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TRAIN = """
import os, sys
from batchbridge.running.launch import arrived, current_launch, has_started
launch = current_launch()
if launch is not None and has_started(launch.run):
    arrived("trainer-1", launch.mode)
print("A", os.environ.get("A"), "PATH", os.environ.get("PYTHONPATH"))
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sources() -> str:
    """PYTHONPATH of a source tree, in development; else empty."""
    return os.environ.get("PYTHONPATH", "")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`batchbridge run WORDS` in a folder with `train.py`, whose trainer is reached where the launch arrives, and with
    the programs of `tmp_path / "bin"` before all others."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "bin").mkdir()

    def ran(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "batchbridge", "run", *words],
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **variables},
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    return ran
