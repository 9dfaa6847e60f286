"""The commands find the adapter through its entry point, on files that inherit, a launch script, and between
frameworks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import batchbridge
from batchbridge.kit import Context, Source, load_source
from batchbridge_nemo_rl.config import NemoAdapter

RECIPES = Path(__file__).with_name("recipes")
SCRIPT = """#!/bin/bash
uv run examples/run_grpo.py --config recipes/base.yaml \\
  grpo.num_generations_per_prompt=8 \\
  policy.train_global_batch_size=STEP \\
  ++loss_fn.reference_policy_kl_penalty=0.001
"""
TRL = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "num_generations": 8,
    "max_completion_length": 512,
    "loss_type": "dapo",
    "beta": 0.0,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "seed": 7,
}


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "batchbridge", *words], capture_output=True, text=True, check=False)


def _script(folder: Path, step: int) -> str:
    (folder / "recipes").mkdir()
    (folder / "recipes" / "base.yaml").write_text((RECIPES / "base.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    file = folder / "run.sh"
    file.write_text(SCRIPT.replace("STEP", str(step)), encoding="utf-8")
    return str(file)


def test_a_file_that_inherits_is_explained_with_the_places_of_both_files() -> None:
    told = json.loads(_run("explain", str(RECIPES / "child.yaml"), "--framework-version", "0.7.0", "--json").stdout)[
        "results"
    ][0]
    spec, origin = told["spec"], told["provenance"]
    assert (told["framework"], told["verdict"]) == ("nemo_rl", "valid")
    assert spec["topology"]["world_size"] == 2 * 4  # the child's cluster replaces its parent's
    assert spec["rollout"] == {**spec["rollout"], "prompts_per_rollout": 64, "completions_per_prompt": 8}
    assert spec["micro_batch"]["tokens_per_device"] == 2 * 4096  # the parent's product, of the child's length
    assert spec["carried"]["learning_rate"] == 1e-6
    assert origin["rollout.prompts_per_rollout"]["file"].endswith("base.yaml")
    assert origin["rollout.completions_per_prompt"]["file"].endswith("child.yaml")
    assert spec["open_terms"] == [
        "rollout: grpo.reward_scaling.enabled true",
        "rollout: grpo.reward_scaling.target_min -1.0",
    ]


def test_a_command_is_checked_with_the_file_it_names(tmp_path: Path) -> None:
    good = _run("check", _script(tmp_path, 256), "--framework-version", "0.7.0")
    assert good.returncode == 0, good.stdout + good.stderr


def test_a_broken_command_is_named_with_its_line_and_a_way_out(tmp_path: Path) -> None:
    broken = _run("check", _script(tmp_path, 96), "--framework-version", "0.7.0")
    assert broken.returncode != 0
    assert "BB-NEMO-026" in broken.stdout
    assert "policy.train_global_batch_size = 96 (:4)" in broken.stdout  # :4, of the script itself


@pytest.mark.parametrize("words", ["--config configs/$X.yaml", "--config=$CFG", "--config $1"])
def test_a_file_whose_name_only_running_would_tell_is_open(tmp_path: Path, words: str) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"#!/bin/bash\nuv run examples/run_grpo.py {words} grpo.seed=8\n", encoding="utf-8")
    reading = batchbridge.read(file, framework="nemo_rl", version="0.7.0")
    assert (reading.verdict, reading.spec) == ("undecided", None)
    assert [finding.code for finding in reading.findings if finding.severity == "error"] == ["BB011"]
    (tmp_path / "base.yaml").write_text((RECIPES / "base.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    said = load_source(file, overrides={"config": "base.yaml"}, framework="nemo_rl")
    told = NemoAdapter().read(said, Context(framework_version="0.7.0"))
    assert told.spec is not None
    assert (told.spec.order.seed, told.spec.rollout.prompts_per_rollout) == (8, 64)


def test_a_program_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "examples" / "configs").mkdir(parents=True)
    for name, prompts in (("grpo_sliding_puzzle", 8), ("vlm_grpo_3B", 64)):
        text = f"grpo: {{num_prompts_per_step: {prompts}}}\npolicy: {{train_global_batch_size: 128}}\n"
        (tmp_path / "examples" / "configs" / f"{name}.yaml").write_text(text, encoding="utf-8")
    script = tmp_path / "run.sh"
    for program, prompts in (("run_grpo_sliding_puzzle", 8), ("run_vlm_grpo", 64), ("run_grpo", 32)):
        script.write_text(f"#!/bin/bash\nuv run examples/{program}.py grpo.seed=1\n", encoding="utf-8")
        spec = batchbridge.read(script, version="0.7.0").spec
        assert spec is not None
        assert (spec.rollout.prompts_per_rollout, spec.order.seed) == (prompts, 1)
    for program in ("nemo_gym/run_grpo_nemo_gym", "run_grpo_single_controller", "run_grpo_mine"):
        script.write_text(f"#!/bin/bash\nuv run examples/{program}.py grpo.seed=1\n", encoding="utf-8")
        reading = batchbridge.read(script, version="0.7.0")
        (found,) = [finding for finding in reading.findings if finding.severity == "error"]
        assert (reading.verdict, found.code, found.fixes[0].text) == ("undecided", "BB-NEMO-006", "--config FILE")
        assert "which is not there" in found.message


def test_a_file_that_is_named_and_not_there_is_wrong(tmp_path: Path) -> None:
    words = ["python", "examples/run_grpo.py", "--config", str(tmp_path / "none.yaml")]
    reading = NemoAdapter().read(load_source(words), Context(framework_version="0.7.0"))
    (found,) = reading.findings
    assert (reading.verdict, found.code) == ("invalid", "BB-NEMO-005")


@pytest.mark.parametrize("framework", ["trl", "verl", "open_r1", "easyr1", "openrlhf", "open_instruct"])
def test_a_conversion_to_another_framework_accounts_for_every_field(framework: str) -> None:
    made = batchbridge.convert(batchbridge.read(RECIPES / "base.yaml", version="0.7.0"), framework)
    told = {field.field: field for field in made.fields}
    for path in ("rollout.prompts_per_rollout", "rollout.completions_per_prompt"):
        assert told[path].status == "exact"
    assert made.written is not None


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_what_another_framework_says_is_written(framework: str) -> None:
    there = batchbridge.read(TRL, framework="trl", version="1.16.0", world_size=4, dataset_size=1024)
    if framework == "verl":
        values = batchbridge.convert(there, "verl").written
        assert values is not None
        there = batchbridge.read(
            dict(values.values), framework="verl", version=values.framework_version, dataset_size=1024
        )
    made = batchbridge.convert(there, "nemo_rl")
    assert made.written is not None
    values = made.written.values
    assert values["grpo.num_prompts_per_step"] * values["grpo.num_generations_per_prompt"] == 8 * 4 * 4
    assert (values["loss_fn.token_level_loss"], values["loss_fn.reference_policy_kl_penalty"]) == (True, 0.0)


def test_a_term_without_a_word_is_lost_by_name() -> None:
    values = {"grpo.adv_estimator.name": "gdpo", "policy.train_micro_batch_size": 4}
    made = batchbridge.convert(batchbridge.read(values, framework="nemo_rl", version="0.7.0"), "trl")
    (lost,) = (field for field in made.fields if field.field == "open_terms")
    assert (lost.status, lost.source) == ("inexpressible", ("advantage: gdpo",))


def test_a_run_that_fails_for_another_reason_breaks_no_rule_of_sizes() -> None:
    """The sizes of NVIDIA-NeMo/Gym issue 186, whose fault is not in the configuration."""
    values = {
        "grpo.num_prompts_per_step": 2,
        "grpo.num_generations_per_prompt": 4,
        "grpo.overlong_filtering": True,
        "policy.train_global_batch_size": 8,
        "policy.train_micro_batch_size": 1,
        "cluster.gpus_per_node": 2,
        "cluster.num_nodes": 1,
    }
    reading = NemoAdapter().read(Source(values=values), Context(framework_version="0.7.0"))
    assert reading.verdict == "valid", reading.findings
    assert (reading.derived["completions_per_rollout"], reading.derived["optimizer_steps_per_rollout"]) == (8, 1)
