"""The same prediction for two real processes (torchrun, gloo)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_two_processes_train_the_predicted_completions_with_the_predicted_weights(tmp_path: Path) -> None:
    script = Path(__file__).with_name("two_process_run.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    files = sorted(tmp_path.glob("rank-*.json"))
    results = sorted(result for file in files for result in json.loads(file.read_text(encoding="utf-8")))
    expected = [[loss, rank, True, True] for loss in ("bnpo", "dapo") for rank in (0, 1)]
    assert results == expected, run.stderr[-2000:]
