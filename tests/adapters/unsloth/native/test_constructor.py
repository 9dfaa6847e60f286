"""Unsloth's own GRPOConfig of random arguments, beside the reading of a program that builds it with them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trl

import batchbridge as bb

OFTEN: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 2, 3, 4, 6, 8, 12),
    "gradient_accumulation_steps": (1, 2, 3, 4),
    "num_generations": (2, 4, 6, 8),
    "loss_type": ("dapo", "DAPO", "bnpo", "grpo", "dr_grpo", "DR_GRPO", None),
    "scale_rewards": (True, False, "group", "none", "batch"),
    "epsilon_high": (0.2, 0.28, 5.0, None),
    "beta": (0.0, 0.04, None),
    "mask_truncated_completions": (True, False, None),
    "learning_rate": (1e-6,),
    "seed": (1,),
    "optim": ("adamw_torch",),
    "weight_decay": (0.1,),
    "num_iterations": (1, 2),
    "warmup_steps": (3,),
    "vllm_importance_sampling_correction": (True,),
}
SELDOM: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.5, 1.0, 10.0),
    "steps_per_generation": (1, 2, 4),
    "generation_batch_size": (8, 16, 24),
    "max_prompt_length": (64, None),
    "max_seq_length": (5,),
    "nonsense": (1,),
    "warmup_ratio": (0.2,),
    "wandb_log_unique_prompts": (True,),
    "per_gpu_eval_batch_size": (4, 8, None),
}
COMPARED = (
    *(key for key in (*OFTEN, *SELDOM) if hasattr(trl.GRPOConfig, key)),
    *("router_aux_loss_coef", "vllm_mode", "logging_steps", "eval_accumulation_steps", "per_device_eval_batch_size"),
    "torch_empty_cache_steps",
)
SCALES = {True: "group", False: "none"}


def drawn(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    said = {key: chance.choice(values) for key, values in OFTEN.items() if chance.random() < 0.4}
    return said | {key: chance.choice(values) for key, values in SELDOM.items() if chance.random() < 0.1}


def read(folder: Path, said: dict[str, Any]) -> bb.Reading:
    words = "".join(f", {key}={value!r}" for key, value in said.items())
    file = folder / "train.py"
    file.write_text(
        "import unsloth\nfrom trl import GRPOConfig, GRPOTrainer\n"
        f"GRPOTrainer('m', [len], args=GRPOConfig(output_dir='o', use_cpu=True{words})).train()\n"
    )
    return bb.read(file, version=trl.__version__, world_size=1)


def value_of(key: str, value: Any) -> Any:
    value = getattr(value, "value", value)
    return SCALES.get(value, value) if key == "scale_rewards" else value


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_the_constructor_makes_of_its_arguments_what_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: int
) -> None:
    differ = []
    for seed in range(first, first + 20):
        said = drawn(seed)
        reading = read(tmp_path, said)
        capsys.readouterr()
        try:
            args = trl.GRPOConfig(output_dir="o", use_cpu=True, **said)
        except (ValueError, TypeError) as error:
            if reading.verdict != "invalid":
                differ.append((said, reading.verdict, str(error)))
            continue
        if reading.verdict != "valid":
            differ.append((said, reading.verdict, [str(one) for one in reading.wrong]))
            continue
        for key in COMPARED:
            real, found = value_of(key, getattr(args, key)), value_of(key, reading.native.get(key))
            derived = key in ("steps_per_generation", "generation_batch_size") and found is None
            if real != found and not derived:
                differ.append((said, key, real, found))
        changes = [one for one in reading.findings if "changes per_device_train_batch_size" in one.message]
        if ("We will change the batch size" in capsys.readouterr().out) != bool(changes):
            differ.append((said, "its message"))
    assert not differ


def test_a_class_that_was_taken_before_unsloth_came_is_trl_s_own() -> None:
    assert trl.GRPOConfig.__mro__[1].__init__ is not trl.GRPOConfig.__init__
    with pytest.raises(ValueError, match="divisible by num_generations"):
        trl.GRPOConfig.__mro__[1](output_dir="o", use_cpu=True, per_device_train_batch_size=2)
