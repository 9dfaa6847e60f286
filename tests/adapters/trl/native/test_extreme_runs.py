"""Sixteen runs of thirty steps on settings that nobody would choose, TRL's own sampling in each: no false `BatchDrift`.

By name: `nox -s "trl_full(release='newest')" -- -k extreme`; by default the one that was once stopped falsely.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from representative import WHOLE
from trl import GRPOConfig, GRPOTrainer

from batchbridge import BatchDrift, wrap
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

STEPS = 30
PASSES: dict[str, Any] = {"num_iterations": 3, "steps_per_generation": 4}
SEQUENCES = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"}
HALF, MODEL = {"bf16": True}, {"bf16": True, "half_model": True}
RUNS: dict[str, dict[str, Any]] = {
    "bf16, three passes, rate 0.1": {**HALF, **PASSES, "learning_rate": 0.1},
    "bf16 model, three passes": {**MODEL, **PASSES, "learning_rate": 0.03},
    "bf16 model, three passes, KL": {**MODEL, **PASSES, "learning_rate": 0.03, "beta": 0.04},
    "rate 0.3, delta, KL 0.2": {**PASSES, "learning_rate": 0.3, "delta": 1.5, "beta": 0.2},
    "ratios of sequences, narrow clip": {**SEQUENCES, **PASSES},
    "ratios of sequences, bf16": {**SEQUENCES, **HALF, **PASSES},
    "ratios of sequences, bf16 model": {**SEQUENCES, **MODEL, **PASSES},
    "cispo, bf16, rate 0.1": {**HALF, **PASSES, "loss_type": "cispo", "epsilon_high": 5.0, "learning_rate": 0.1},
    "sapo, rate 0.1": {**PASSES, "loss_type": "sapo", "learning_rate": 0.1},
    "vespo, rate 0.05": {**PASSES, "loss_type": "vespo", "learning_rate": 0.05},
    "a token budget, bf16": {**HALF, **PASSES, "tokens_per_device": 40},
    "truncated ones masked, half a temperature": {
        "mask_truncated_completions": True,
        "temperature": 0.5,
        "steps_per_generation": 3,
    },
    "hardly anything but KL": {"beta": 1e-3, "learning_rate": 1e-4},
    "an adaptive entropy bonus, bf16": {
        **HALF,
        "use_adaptive_entropy": True,
        "entropy_target": 3.0,
        "learning_rate": 0.02,
    },
    "an off-policy mask": {**PASSES, "off_policy_mask_threshold": 0.05, "learning_rate": 0.05},
    "SGD, rate 50": {"optim": "sgd", "learning_rate": 50.0},
}


def reward(completions: list[str], **_: Any) -> list[float | None]:
    """Some number of the text; none for every fifth length."""
    return [float(sum(map(ord, text)) % 7) / 3 if len(text) % 5 else None for text in completions]


def build(folder: Path, settings: dict[str, Any]) -> GRPOTrainer:
    settings = dict(settings)
    policy = tiny_policy().bfloat16() if settings.pop("half_model", False) else tiny_policy()
    policy.save_pretrained(folder / "policy")
    given: dict[str, Any] = {"max_steps": STEPS, "optim": "adamw_torch", "learning_rate": 1e-2, **settings}
    args = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        num_generations=4,
        max_completion_length=12,
        per_device_train_batch_size=4,
        **{"gradient_accumulation_steps": 2, "bf16": False, **given},
    )
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    script = ScriptedRollouts()
    prompts = Dataset.from_dict({"prompt": [script.prompt(index) for index in range(24)]})
    # Read back, so that a reference model can be.
    policy.config._name_or_path = str(folder / "policy")
    return GRPOTrainer(policy, [reward], args, train_dataset=prompts, processing_class=tokenizer)


CASES = [
    (name, mode)
    for mode in ("enforce", "verify")
    for name in RUNS
    if WHOLE or (name, mode) == ("vespo, rate 0.05", "verify")
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_an_extreme_run_is_stopped_only_where_it_has_diverged(tmp_path: Path, name: str, mode: Any) -> None:
    settings, asked = dict(RUNS[name]), {}
    budget = settings.pop("tokens_per_device", None)
    if mode == "enforce":
        asked = {"tokens_per_device": budget} if budget else {}
    elif (steps := settings.pop("steps_per_generation", None)) is not None:
        settings["gradient_accumulation_steps"] = steps  # elsewhere weights depart, as docs/measured.md lists
    torch.manual_seed(0)
    built = wrap(build(tmp_path, settings), mode=mode, **asked)
    try:
        built.train()
    except BatchDrift as drift:
        if "is not finite" not in drift.detail:
            raise
    else:
        assert built.state.global_step == STEPS
