"""`batchbridge run` on a script that knows nothing of BatchBridge."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from batchbridge import Plan, Spec
from batchbridge.ledger import read_headers, read_steps

SCRIPT = """
import sys

import ray

import pocketray
from batchbridge.testing.tiny import Script, tiny_policy, tiny_tokenizer

ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], object_store_memory=100_000_000)
script, tokenizer = Script(), tiny_tokenizer()
driver = pocketray.Driver(
    tiny_policy,
    [tokenizer(script.prompt(index))["input_ids"] for index in range(9)],
    lambda prompt, sample: (
        script.completion(prompt, sample), script.loss_mask(prompt, sample), script.reward(prompt, sample)
    ),
    micro=3,
)
driver.train()
ray.shutdown()
"""


def test_a_driver_that_a_script_builds_is_wrapped_before_it_trains(tmp_path: Path) -> None:
    script, ledger = tmp_path / "train.py", tmp_path / "ledger"
    script.write_text(SCRIPT, encoding="utf-8")
    short = tempfile.mkdtemp(prefix="bb")  # paths of Ray's sockets must be short
    paths = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "batchbridge", "run", "--ledger", ledger, "--", sys.executable, script, short],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    header = read_headers(ledger)[0]
    plan, steps = Plan(Spec.from_dict(header["spec"]), header["dataset_size"]), list(read_steps(ledger))
    assert (header["framework"], header["mode"], len(steps)) == ("pocketray", "enforce", plan.total_optimizer_steps)
