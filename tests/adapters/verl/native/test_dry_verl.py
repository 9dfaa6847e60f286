"""`batchbridge run --dry` of the stock `python -m verl.trainer.main_ppo`: judged in Ray's actor, nothing trained."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from batchbridge.reading.read import read
from batchbridge_on_cpu.verl.scripted import command, environment, prepare


def test_a_dry_run_judges_the_trainer_in_its_actor_and_takes_no_step() -> None:
    """What Hydra leaves of it means the same; no checkpoint (save_freq is 1), no weights, no worker is left."""
    with tempfile.TemporaryDirectory(prefix="v", ignore_cleanup_errors=True) as place:  # short: Ray's sockets
        folder = Path(place)
        prepare(folder, prompts=12)
        before = {file.name for file in folder.iterdir()}
        started = command(folder, 1, "trainer.total_training_steps=3", "trainer.save_freq=1")
        words = [sys.executable, "-m", "batchbridge", "run", "--dry", "--", *started]
        own = {**environment(os.environ), "BATCHBRIDGE_WEIGHTS": str(folder / "weights"), "RAY_TMPDIR": place}
        ran = subprocess.run(words, env=own, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-4000:]
        assert f"that the command built  verl {version('verl')}  1 device  VALID" in ran.stdout
        assert "An optimizer step trains on 12 completions" in ran.stdout
        left = {file.name for file in folder.iterdir()} - before - {"ray"}
        assert left == {"outputs"}, "what Hydra leaves of every command"
        past = read(folder / "outputs", version=version("verl"))
        assert past.spec is not None
        assert past.spec.optimizer_step.completions_per_step == 12
        alive = subprocess.run(["pgrep", "-f", place], capture_output=True, text=True, check=False).stdout.split()
        assert alive == []
