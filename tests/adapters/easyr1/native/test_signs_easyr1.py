"""Without flash-attn EasyR1 0.3.0 and 0.3.1 have log-probabilities of the wrong sign, and no worker is attached to.
Later releases are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import proofs

from batchbridge_on_cpu.easyr1.scripted import prepare


def test_log_probabilities_of_the_wrong_sign_are_refused(tmp_path: Path, checkout: Path, release: str) -> None:
    prepare(tmp_path)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", "--standalone"]
    paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [*words, str(Path(__file__).with_name("signs.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert ran.returncode == 0, ran.stderr[-20000:]
    reasons = json.loads((tmp_path / "signs.json").read_text(encoding="utf-8"))
    if release in proofs.WITHOUT:
        assert reasons.keys() == {"log_probabilities"}
        assert "pip install flash-attn" in reasons["log_probabilities"]
    else:
        assert reasons == {}
