"""The checkout of Open-Instruct that BATCHBRIDGE_OPEN_INSTRUCT names, and where its finished runs are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(HERE), str(HERE.parent)]

Ran = Callable[..., Path]
SECONDS = 3000
"""Of one script: a rank that waits for another one for ever is ended."""


@pytest.fixture(scope="session")
def checkout() -> Path:
    named = os.environ.get("BATCHBRIDGE_OPEN_INSTRUCT")
    if not named:
        pytest.skip("BATCHBRIDGE_OPEN_INSTRUCT names no checkout of Open-Instruct")
    return Path(named).absolute()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: Ray's sockets have paths of at most 107 bytes. `BATCHBRIDGE_OPEN_INSTRUCT_RUNS`: a folder that keeps
    finished runs, for work on a single test and for `keep_figures.py`."""
    kept = os.environ.get("BATCHBRIDGE_OPEN_INSTRUCT_RUNS")
    return tmp_path_factory.mktemp("o") if kept is None else Path(kept)


@pytest.fixture(scope="session")
def ran(checkout: Path, place: Path) -> Ran:
    """Runs a script of this folder with a number of processes, once, and returns its folder."""

    def run(script: str, ranks: int, finished: str) -> Path:
        folder = place / f"{script}-{ranks}"
        if (folder / finished).exists():
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"] if ranks else []
        paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, *launcher, str(HERE / f"{script}.py"), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-20000:]
        return folder

    return run
