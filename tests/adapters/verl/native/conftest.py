"""Settings of the tests that need verl, and the record of what they measure."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

FIGURES = Path(__file__).parents[1] / "figures.json"
"""Version of verl -> what was measured -> case -> figures. docs/verl.md is written from it."""


@pytest.fixture
def record() -> Callable[..., None]:
    """Keeps the figures of a measured case in `FIGURES`, two digits each and counts whole, where BATCHBRIDGE_RECORD=1
    asks for it."""
    from batchbridge_on_cpu.figures import keep, rounded

    def kept(what: str, case: str, **figures: float) -> None:
        two = {name: value if isinstance(value, int) else rounded(value) for name, value in figures.items()}
        keep(FIGURES, importlib.metadata.version("verl"), what, {case: two})

    return kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(processes, and what `processes.py` is told beside them) -> where it left what it measured. It runs when it is
    first asked for."""
    from batchbridge_on_cpu.verl.critic import save_critic
    from batchbridge_on_cpu.verl.workers import save_policy

    @functools.cache
    def started(ranks: int, *told: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
        place = tmp_path_factory.mktemp("_".join(("ranks", str(ranks), *told)))
        save_policy(place / "policy")
        if "critic" in told:
            save_critic(place / "critic")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
        ran = subprocess.run(
            [*command, str(Path(__file__).with_name("processes.py")), str(place), *told],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return place, ran

    def run(ranks: int, *told: str) -> Path:
        place, ran = started(ranks, *told)
        assert ran.returncode == 0, ran.stderr[-20000:]
        return place

    return run
