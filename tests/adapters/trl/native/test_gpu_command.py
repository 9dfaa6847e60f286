"""benchmarks/gpu.py in its small form on a CPU, where BatchBridge is not installed, nor what only its commands need.

Of its list, one row of every kind is run, and all of them in `nox -s trl_full`, but those whose packages are not there.
Figures are judged nowhere, bars of gradients are.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from representative import WHOLE

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
NOT_CARRIED = ("batchbridge", "bashread", "tree_sitter", "hypothesis", "pytest")
"""The beginnings of names of what the environment lacks."""
OF_EVERY_KIND = (
    "gradient, bf16",
    "gradient, bf16, prompts of 256 tokens, no padding",
    "gradient, bf16, flash attention",
    "drawn by TRL",
    "checks and ledger, 64 completions of 150 tokens",
    "a step of trl",
    "0.5B, 64 completions, LoRA",
    "0.5B, 64 completions, DeepSpeed ZeRO-2",
    "drawn by vLLM",
    "a step of verl",
)
ASKED = () if WHOLE else ("--only", *OF_EVERY_KIND)
BARE = """
import site, sys
sys.path[:] = [path for path in sys.path if path not in site.getsitepackages()]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an environment without BatchBridge: links to the packages of this one, but for some."""
    folder = tmp_path_factory.mktemp("site")
    for place in map(Path, site.getsitepackages()):
        for package in place.iterdir():
            if not package.name.startswith(NOT_CARRIED) and package.suffix != ".pth":
                (folder / package.name).symlink_to(package)
    (folder / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def gpu(bare: dict[str, str], tmp_path: Path) -> Any:
    """Runs the command into this test's folder: what it printed, and the results."""

    def run(*words: str, code: int = 0, device: tuple[str, ...] = ("--device", "cpu", "--tiny")) -> tuple[str, Any]:
        said = [sys.executable, str(SCRIPT), *device, "--out", str(tmp_path), *words]
        done = subprocess.run(said, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        file = tmp_path / "gpu.json"
        return done.stdout + done.stderr, json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    return run


def test_the_environment_is_bare(bare: dict[str, str]) -> None:
    look = "import sys; from importlib.util import find_spec as f; print([name for name in sys.argv[1:] if f(name)])"
    words = [sys.executable, "-c", look, "batchbridge", "tree_sitter", "trl"]
    done = subprocess.run(words, env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['trl']"


def test_every_row_is_measured_and_the_next_call_has_nothing_left(gpu: Any, tmp_path: Path) -> None:
    _, found = gpu("--slice-minutes", "60", *ASKED)
    rows = found["rows"]
    assert WHOLE or rows.keys() == set(OF_EVERY_KIND)
    states = {name: record["status"] for name, record in rows.items()}
    assert set(states.values()) == {"done", "not there"}, rows
    for name, record in rows.items():
        if record["status"] == "not there":
            assert record["needs"] == [package for package in record["needs"] if find_spec(package) is None]
            continue
        assert record["seconds"] > 0
        if "bar" in record:
            assert record["held"], (name, record)
            assert record["control_missed"], (name, record)
    lacking = {package for record in rows.values() for package in record.get("needs", ())}
    assert {"vllm", "flash_attn", "deepspeed", "verl"} - lacking == {
        package for package in ("vllm", "flash_attn", "deepspeed", "verl") if find_spec(package)
    }
    assert found["where"]["tiny"]
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in rows)
    assert "these figures mean nothing" in page
    assert "not there: vllm" in page
    output, again = gpu(*ASKED)
    assert "done" not in output
    assert {**again, "slice_seconds": []} == {**found, "slice_seconds": []}
    assert len(again["slice_seconds"]) == 2
    # Results of another place stay what they are.
    file = tmp_path / "gpu.json"
    elsewhere = {**again, "where": {**again["where"], "machine": "another"}}
    file.write_text(json.dumps({**elsewhere, "rows": {}}), encoding="utf-8")
    output, kept = gpu("--only", "a step of trl", code=2)
    assert "gpu.json has results of" in output
    assert "--out" in output
    assert set(kept["rows"]) <= {name for name in rows if rows[name]["status"] == "not there"}


def test_without_a_device_nothing_is_recorded(gpu: Any) -> None:
    output, found = gpu("--only", "a step of trl", device=(), code=2)
    assert "torch finds no CUDA device" in output
    assert found["rows"] == {}
    assert found["where"] is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--only", "0.7B"), "no row or group 0.7B"),
        (("--out", str(SCRIPT.parent)), "another than this script's"),
    ],
)
def test_what_cannot_be_meant_is_refused(gpu: Any, words: tuple[str, ...], why: str) -> None:
    output, found = gpu(*words, code=2)
    assert why in output
    assert found is None
