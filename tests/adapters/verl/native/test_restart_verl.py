"""A run of verl's that restarts by itself: `while ! COMMAND; do :; done` with `kill -9` at random moments ends,
bit-equal. The stock entry under Ray, minutes a loop, so by hand: `nox -s "verl_full(release='0.9.1')"`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from batchbridge_on_cpu.killing import assert_ends_alike

SCRIPT = Path(__file__).parent / "restarting.py"
ROLLOUTS = 3


@pytest.mark.by_hand
@pytest.mark.parametrize(
    ("ranks", "seed", "more"),
    [(1, 1, ()), (2, 2, ()), (1, 3, ("trainer.use_v1=False",))],
    ids=["one rank", "two ranks", "V0"],
)
def test_a_command_that_is_killed_again_and_again_ends_as_if_it_never_was(
    ranks: int, seed: int, more: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory(prefix="v", ignore_cleanup_errors=True) as place:  # short, for Ray's sockets
        command = [sys.executable, str(SCRIPT), place, str(ranks), str(seed), *more]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        log = Path(place, "killed", "log.txt")
        assert ran.returncode == 0, ran.stderr[-3000:] + log.read_text(encoding="utf-8")[-5000:]
        assert_ends_alike(Path(place))
        whole, killed = (
            torch.load(f"{place}/{name}/weights/{ROLLOUTS}.pt", weights_only=True) for name in ("whole", "killed")
        )
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())
