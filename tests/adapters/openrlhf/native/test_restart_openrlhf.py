"""A run of OpenRLHF's that restarts by itself: `while ! COMMAND; do :; done` with `kill -9` at random moments ends,
bit-equal. Its `PPOTrainer.fit` in one process; the stock entry under Ray, by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from batchbridge_on_cpu.killing import assert_ends_alike

SCRIPTS = Path(__file__).parent
SEEDS = range(1, 5) if os.environ.get("BATCHBRIDGE_WHOLE_MATRIX") else (1,)
"""The loops in one process: `BATCHBRIDGE_WHOLE_MATRIX=1` runs more."""


def looped(script: str, *words: str) -> None:
    command = [sys.executable, str(SCRIPTS / script), *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trainer_that_is_killed_again_and_again_ends_as_if_it_never_was(tmp_path: Path, seed: int) -> None:
    looped("restarting.py", str(tmp_path), str(seed))
    assert_ends_alike(tmp_path)
    ends = [torch.load(tmp_path / name / "end.pt", weights_only=True) for name in ("whole", "killed")]
    assert torch.equal(*ends)


@pytest.mark.by_hand
@pytest.mark.parametrize(("ranks", "seed"), [(1, 1), (2, 2)])
def test_the_stock_entry_under_ray_ends_as_if_nobody_had_killed_it(ranks: int, seed: int) -> None:
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory(prefix="o", ignore_cleanup_errors=True) as place:  # short, for Ray's sockets
        looped("restarting_under_ray.py", place, str(ranks), str(seed))
        assert_ends_alike(Path(place))
        whole, killed = (load_file(f"{place}/{name}/trained/model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())
