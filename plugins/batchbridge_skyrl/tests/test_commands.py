"""The commands find the adapter through its entry point, on a launch script and between frameworks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import batchbridge

SCRIPT = """#!/bin/bash
: "${NUM_GPUS:=4}"
uv run --isolated --env-file job.env --extra fsdp -m skyrl.train.entrypoints.main_base \\
  data.train_data="['$HOME/train.parquet']" \\
  trainer.placement.policy_num_gpus_per_node=$NUM_GPUS \\
  trainer.placement.ref_num_gpus_per_node=$NUM_GPUS \\
  generator.inference_engine.num_engines=$NUM_GPUS \\
  generator.inference_engine.engine_init_kwargs.max_model_len=4096 \\
  trainer.train_batch_size=128 \\
  trainer.policy_mini_batch_size=MINI \\
  trainer.policy.optimizer_config.lr=1e-6 \\
  trainer.algorithm.loss_reduction=sequence_mean \\
  $@
"""
TRL = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "num_generations": 8,
    "max_completion_length": 512,
    "loss_type": "grpo",
    "scale_rewards": "group",
    "beta": 0.0,
    "learning_rate": 1e-6,
    "seed": 7,
}


def _script(folder: Path, mini: int) -> Path:
    file = folder / "run.sh"
    file.write_text(SCRIPT.replace("MINI", str(mini)), encoding="utf-8")
    return file


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "batchbridge", *words], capture_output=True, text=True, check=False)


def test_check_and_explain_read_a_launch_script(tmp_path: Path) -> None:
    file = str(_script(tmp_path, 64))
    good = _run("check", file, "--framework-version", "0.3.0")
    assert good.returncode == 0, good.stdout + good.stderr
    told = json.loads(_run("explain", file, "--framework-version", "0.3.0", "--json").stdout)["results"][0]
    assert (told["framework"], told["verdict"]) == ("skyrl", "valid")
    assert told["spec"]["optimizer_step"]["completions_per_step"] == 64 * 5
    assert told["provenance"]["rollout.prompts_per_rollout"]["line"] == 9


def test_check_names_the_setting_its_line_and_a_way_out(tmp_path: Path) -> None:
    broken = _run("check", str(_script(tmp_path, 96)), "--framework-version", "0.3.0")
    assert broken.returncode != 0
    assert "BB-SKYRL-017" in broken.stdout
    assert "trainer.policy_mini_batch_size = 96 (:10)" in broken.stdout
    assert (
        "trainer.policy_mini_batch_size = 128" in broken.stdout
        or "trainer.policy_mini_batch_size = 64" in broken.stdout
    )


@pytest.mark.parametrize("framework", ["trl", "verl", "open_r1", "easyr1", "openrlhf", "open_instruct"])
def test_a_conversion_to_another_framework_accounts_for_every_field(tmp_path: Path, framework: str) -> None:
    made = batchbridge.convert(batchbridge.read(_script(tmp_path, 64), version="0.3.0"), framework)
    told = {field.field: field for field in made.fields}
    exact = ["rollout.prompts_per_rollout", "rollout.completions_per_prompt"]
    if framework == "open_instruct":  # it cuts a rollout into parts of as many tokens
        assert told["optimizer_step.parts_per_rollout"].target == 2
    else:
        exact.append("optimizer_step.completions_per_step")
    assert {path: told[path].status for path in exact} == dict.fromkeys(exact, "exact")
    assert made.written is not None


def test_what_trl_says_comes_back_from_skyrl() -> None:
    there = batchbridge.convert(batchbridge.read(TRL, framework="trl", version="1.16.0", world_size=4), "skyrl")
    assert there.written is not None
    values = there.written.values
    assert values["trainer.train_batch_size"] * values["generator.n_samples_per_prompt"] == 8 * 4 * 4
    assert values["trainer.algorithm.loss_reduction"] == "sequence_mean"
    assert values["trainer.placement.policy_num_gpus_per_node"] == 4
    back = batchbridge.convert(batchbridge.read(dict(values), framework="skyrl", version="0.3.0"), "trl")
    assert back.written is not None
    assert {key: back.written.values[key] for key in ("num_generations", "loss_type", "seed")} == {
        "num_generations": 8,
        "loss_type": "grpo",
        "seed": 7,
    }


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_run_that_steps_end_is_written_without_an_end_by_epochs(devices: int) -> None:
    source = batchbridge.read(TRL | {"max_steps": 100}, framework="trl", version="1.16.0", world_size=devices)
    there = batchbridge.convert(source, "skyrl")
    assert there.written is not None
    values = there.written.values
    assert (values["trainer.epochs"], values["trainer.max_training_steps"]) == (1_000_000, 100)
    spec = batchbridge.read(dict(values), framework="skyrl", version="0.3.0").spec
    assert spec is not None
    assert (spec.horizon.epochs, spec.horizon.rollouts, spec.topology.world_size) == (None, 100, devices)


def test_a_term_without_a_word_is_lost_by_name(tmp_path: Path) -> None:
    values = {"trainer.algorithm.advantage_estimator": "maxrl", "trainer.placement.colocate_all": False}
    made = batchbridge.convert(batchbridge.read(values, framework="skyrl", version="0.3.0"), "trl")
    (lost,) = (field for field in made.fields if field.field == "open_terms")
    assert lost.status == "inexpressible"
    assert lost.source == ("advantage: maxrl",)
