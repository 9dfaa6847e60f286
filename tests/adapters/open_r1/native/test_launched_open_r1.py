"""`batchbridge run -- accelerate launch --config_file zero3.yaml src/open_r1/grpo.py --config recipe.yaml`, with a
script of our own that is built as Open-R1's is; test_checkout_open_r1.py runs theirs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from launching import prepare, started, steps_followed

from batchbridge.ledger.reading import Ledger
from batchbridge_trl.releases import installed_version

STAGE = 2 if installed_version("trl") == "0.18.0" else 3
"""One launch costs half a minute: the sessions share the stages, and both are held against the oracle elsewhere."""
RECIPE: dict[str, Any] = {
    "model_name_or_path": "replaced",
    "dataset_name": "replaced",
    "dataset_prompt_column": "problem",
    "system_prompt": "w1 w2 w3",
    "benchmarks": ["none"],
    "bf16": True,
    "gradient_accumulation_steps": 2,
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "learning_rate": 1.0e-3,
    "lr_scheduler_type": "cosine",
    "num_generations": 4,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 4,
    "reward_funcs": ["tags"],
    "loss_type": "bnpo",
}


def accelerate_file(stage: int) -> dict[str, Any]:
    deepspeed: dict[str, Any] = {
        "deepspeed_multinode_launcher": "standard",
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": stage == 3,
        "zero_stage": stage,
    }
    if stage == 3:
        deepspeed["zero3_save_16bit_model"] = True
    return {
        "compute_environment": "LOCAL_MACHINE",
        "deepspeed_config": deepspeed,
        "distributed_type": "DEEPSPEED",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "bf16",
        "num_machines": 1,
        "num_processes": 8,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Folders as in Open-R1."""
    for path in ("src/open_r1", "recipes/accelerate_configs", "recipes/tiny/grpo"):
        (tmp_path / path).mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "recipe_script.py", tmp_path / "src/open_r1/grpo.py")
    for stage in (2, 3):
        (tmp_path / f"recipes/accelerate_configs/zero{stage}.yaml").write_text(yaml.safe_dump(accelerate_file(stage)))
    (tmp_path / "recipes/tiny/grpo/config_demo.yaml").write_text(yaml.safe_dump(RECIPE))
    return tmp_path


def test_a_recipe_on_zero_follows_on_both_ranks(checkout: Path) -> None:
    prepare(checkout, "problem")
    file, recipe = f"recipes/accelerate_configs/zero{STAGE}.yaml", "recipes/tiny/grpo/config_demo.yaml"
    ran = started(checkout, checkout, file, recipe)
    assert steps_followed(checkout, ran) == 4
    assert f"trained in a DeepSpeedEngine, ZeRO-{STAGE}" in ran.stdout
    spec = Ledger(checkout / "ledger").files[0].headers[0]["spec"]
    assert (spec["optimizer_step"]["completions_per_step"], spec["topology"]["world_size"]) == (16, 2)


def test_a_recipe_that_trl_would_refuse_is_not_started(checkout: Path) -> None:
    recipe = "recipes/tiny/grpo/config_demo.yaml"
    ran = started(checkout, checkout, "recipes/accelerate_configs/zero2.yaml", recipe, num_generations="3")
    assert ran.returncode == 2
    assert "BB-TRL-021" in ran.stderr
