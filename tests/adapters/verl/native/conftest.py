"""Settings of the tests that need verl, and the record of what they measure."""

from __future__ import annotations

import fcntl
import functools
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

MEASURED = Path(__file__).with_name("measured.json")
"""Version of verl -> what was measured -> case -> figures, and digests of our code that they are of. tests/docs holds
docs/verl.md against it, tests/adapters/verl the code."""
PACKED = ("shared prompts", "prefix grouper asked for")
"""What is measured in passes of packed rows, on which no other run depends."""
DIGESTS = Path(__file__).parents[3] / "equivalence" / "native"


@pytest.fixture
def record() -> Callable[..., None]:
    """Keeps the figures of a measured case in `MEASURED`, two digits each and counts whole, where BATCHBRIDGE_RECORD=1
    asks for it."""

    def keep(what: str, case: str, **figures: float) -> None:
        if os.environ.get("BATCHBRIDGE_RECORD") != "1":
            return
        sys.path.append(str(DIGESTS))
        digests = importlib.import_module("digests")
        sys.path.remove(str(DIGESTS))
        with MEASURED.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # pytest's other process may record, too
            file.seek(0)
            kept = json.loads(file.read() or "{}")
            code, version = {**digests.digests("verl"), **digests.measuring("verl")}, importlib.metadata.version("verl")
            if kept.get(version, {}).get("code") != code:
                kept[version] = {"code": code}  # figures of other code say nothing
            of_version = kept[version]
            if what in PACKED and of_version.get("code of packed passes") != digests.packed():
                of_version |= {"code of packed passes": digests.packed(), **{name: {} for name in PACKED}}
            of_version.setdefault(what, {})[case] = {
                name: value if isinstance(value, int) else float(f"{value:.1e}") for name, value in figures.items()
            }
            file.truncate(0)
            file.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")

    return keep


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
