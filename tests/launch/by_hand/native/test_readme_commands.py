"""The published commands of the frameworks' first pages, with `batchbridge run` in front of them.

verl's quickstart runs as it stands there, PPO with a critic: of its settings the model, the data and sizes have other
values, and what a CPU needs stands behind them. OpenRLHF's, which `ray job submit` sends (`test_ray_cluster`), names
options in its own newest release that this release does not have.

By name (`nox -s ray_cluster`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchbridge.ledger import read_headers, read_steps
from batchbridge.reading.read import read
from batchbridge.reports import check

QUICKSTART = {
    # verl 0.9.1, docs/start/quickstart.rst; of sizes and paths the tiny run's
    "data.train_files": "{folder}/prompts.parquet",
    "data.val_files": "{folder}/prompts.parquet",
    "data.train_batch_size": "6",
    "data.max_prompt_length": "64",
    "data.max_response_length": "24",
    "actor_rollout_ref.model.path": "{folder}/policy",
    "actor_rollout_ref.actor.optim.lr": "1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "3",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "1",
    "actor_rollout_ref.rollout.name": "scripted",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "1",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "0.4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "1",
    "critic.optim.lr": "1e-5",
    "critic.model.path": "{folder}/critic",
    "critic.ppo_micro_batch_size_per_gpu": "1",
    "algorithm.kl_ctrl.kl_coef": "0.001",
    "trainer.logger": "console",
    "trainer.val_before_train": "False",
    "trainer.n_gpus_per_node": "1",
    "trainer.nnodes": "1",
    "trainer.save_freq": "10",
    "trainer.test_freq": "10",
    "trainer.total_epochs": "1",
}
ROLLOUTS, STEPS = 2, 4
"""Of one epoch of twelve prompts."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Short: paths of Ray's sockets have at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="r"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def key_of(word: str) -> str:
    return word.partition("=")[0].lstrip("+")


def test_verls_quickstart_ends_with_a_ledger_of_the_policy_and_of_the_critic(place: Path) -> None:
    pytest.importorskip("verl")
    from batchbridge_on_cpu.verl.critic import OVERRIDES, save_critic
    from batchbridge_on_cpu.verl.scripted import MODULES, environment, overrides, prepare

    prepare(place)
    save_critic(place / "critic")
    given = [f"{key}={value.format(folder=place)}" for key, value in QUICKSTART.items()]
    own = {*QUICKSTART, "algorithm.adv_estimator", "actor_rollout_ref.rollout.n"}
    needed = [word for word in (*overrides(place, 1), *OVERRIDES) if key_of(word) not in own]
    command = ["python3", "-m", "verl.trainer.main_ppo", *given, *needed]
    reading = read(command, version="0.9.1", dataset_size=12)
    assert reading.verdict == "valid", reading.findings
    external = ",".join((*MODULES, "batchbridge_on_cpu.verl.critic"))
    bin_folder = Path(sys.executable).parent
    environ = {**environment(os.environ), "VERL_USE_EXTERNAL_MODULES": external, "PYTHONUNBUFFERED": "1"}
    environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(place / "ledger"), "--"]
    ran = subprocess.run(
        [*launcher, *command],
        env=environ,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20000:]
    lines = [line for line in ran.stdout.splitlines() if line.startswith("batchbridge: ")]
    assert lines[0].startswith("batchbridge: verl 0.9.1, mode enforce; its code: proven")
    assert lines[1].startswith("batchbridge: an optimizer step trains 3 completions; a response token weighs 1 / T")
    assert lines[2] == f"batchbridge: ledger: {place / 'ledger'}"
    assert lines[-1].startswith(f"batchbridge: {STEPS} optimizer steps held against the plan, 0 skipped: ")
    for folder in (place / "ledger", place / "ledger" / "critic"):
        assert {header["mode"] for header in read_headers(folder)} == {"enforce"}
        assert len(list(read_steps(folder))) == STEPS


def test_openrlhfs_readme_command_is_told_from_what_its_release_takes(tmp_path: Path) -> None:
    """Pasted from the page that the installed distribution brings along. Of 0.11.2 it names two options that OpenRLHF
    has no more; `run` starts nothing and says which, and without them all of it is enforced."""
    pytest.importorskip("openrlhf")
    from batchbridge_on_cpu.openrlhf.page import GONE, RELEASE, of_its_release, published

    script = tmp_path / "readme.sh"
    script.write_text(published() + "\n", encoding="utf-8")
    found = check(script, version=RELEASE, dataset_size=100000)
    assert {where.key for one in found.findings if one.severity == "error" for where in one.where} == GONE
    script.write_text(of_its_release() + "\n", encoding="utf-8")
    found = check(script, version=RELEASE, dataset_size=100000)
    assert found.verdict == "valid", found.findings
    assert found.enforcement is not None
    assert found.enforcement.verdict == "enforced"
