"""Makes the helper modules of this folder and of the one above importable; the record of what tests measure."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keeps figures, two digits each, where BATCHBRIDGE_RECORD=1 asks for it: in the group that the module names as its
    RECORD, else in that of the native tests."""
    from orl_proofs import keep

    from batchbridge_on_cpu.figures import rounded

    group = getattr(request.module, "RECORD", "native")

    def kept(what: str, **figures: float) -> None:
        keep(group, what, {name: rounded(value) for name, value in figures.items()})

    return kept


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Script, processes and flags -> what it measured; each runs when it is first asked for."""

    @functools.cache
    def started(script: str, ranks: int, *flags: str) -> dict[str, Any]:
        place = tmp_path_factory.mktemp(f"{script}_{ranks}")
        launch = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"] if ranks else []
        command = [sys.executable, *launch, str(HERE / f"{script}.py"), str(place), *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert ran.returncode == 0, ran.stderr[-20000:]
        import torch

        found: dict[str, Any] = torch.load(place / "measured.pt", weights_only=True)
        return found

    return started
