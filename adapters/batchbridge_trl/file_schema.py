"""The JSON Schema of a recipe: TRL's, and with the keys of its own Open-R1's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.kit.file_schema import ChoiceWords, elsewhere, nested, refused, setting
from batchbridge_trl.meaning import RATIO_LEVELS, loss_types, scales
from batchbridge_trl.rules.later import OBJECTIVES
from batchbridge_trl.settings import CHOICES, GONE, holds
from batchbridge_trl.tables import SettingGroup, settings_of
from batchbridge_trl.values import NULL_TEXT, takes_null

MEANINGS: Mapping[str, tuple[str, str]] = {
    "gradient_accumulation_steps": ("micro-batches", "Micro-batches that a device adds up in one optimizer step."),
    "generation_batch_size": (
        "completions",
        "Completions of one rollout, over all devices. Not beside steps_per_generation.",
    ),
    "steps_per_generation": (
        "micro-batches",
        "Micro-batches of a device that one rollout fills; null: gradient_accumulation_steps.",
    ),
    "num_generations_eval": ("completions per prompt", "Size of a group in an evaluation; null: num_generations."),
    "per_device_eval_batch_size": ("completions", "Completions that a device evaluates at a time."),
    "num_train_epochs": ("epochs", "Passes over the dataset, where max_steps is below 0."),
    "max_steps": ("optimizer steps", "Optimizer steps of the run; -1: as num_train_epochs says."),
    "loss_type": ("", "What a token of the policy loss weighs: over which tokens or sequences the mean is taken."),
    "epsilon": ("", "How far below 1 a probability ratio is clipped; and above 1, where epsilon_high is null."),
    "epsilon_high": ("", "How far above 1 a probability ratio is clipped; null: as epsilon says."),
    "delta": ("", "Upper bound of the probability ratio, whatever the advantage; null: none."),
    "warmup_ratio": ("share of the optimizer steps", "Optimizer steps over which the learning rate rises."),
    "warmup_steps": ("optimizer steps", "Optimizer steps over which the learning rate rises."),
    "lr_scheduler_type": ("", "How the learning rate moves behind the warm-up."),
    "top_entropy_quantile": ("share of the tokens", "Tokens of the highest entropy that are trained; 1.0: all."),
    "multi_objective_aggregation": ("", "Whether several rewards are added up first, or scaled first."),
    "num_processes": ("devices", "Processes that train; handed to accelerate's launcher."),
    "vllm_gpu_memory_utilization": ("share of a device's memory", "Memory that vLLM takes on a device."),
    "vllm_tensor_parallel_size": ("devices", "Devices that share a layer while vLLM generates."),
    "logging_steps": ("optimizer steps", "Optimizer steps between two logs; below 1 a share of the run."),
    "save_steps": ("optimizer steps", "Optimizer steps between two checkpoints; below 1 a share of the run."),
    "eval_steps": ("optimizer steps", "Optimizer steps between two evaluations; below 1 a share of the run."),
}
"""Unit and meaning of keys that no canonical field alone comes from. Source: the docstrings of trl 0.18.0 to 1.16.0
GRPOConfig and of transformers' TrainingArguments; what they come to is in `sizes` and `meaning`."""


def words_of(version: str) -> Mapping[str, ChoiceWords]:
    """The words of settings that TRL takes as text and refuses later, and of those that it goes on with."""
    known = {
        "loss_type": ChoiceWords(tuple(loss_types(version))),
        "importance_sampling_level": ChoiceWords(tuple(RATIO_LEVELS)),
        "vllm_mode": ChoiceWords(("server", "colocate"), only=False),
    }
    known |= {key: ChoiceWords(words, only=False) for key, words in CHOICES.items()}
    if holds(">=0.22", version):
        known["scale_rewards"] = ChoiceWords(tuple(scales(version)))
    if holds(">=0.27", version):
        known["multi_objective_aggregation"] = ChoiceWords(OBJECTIVES)
    return known


def settings_schema(
    framework: str, groups: tuple[SettingGroup, ...], version: str, decides: Callable[[str], str | None]
) -> dict[str, Any]:
    """Every key of `groups` that is a setting in `version`; those that are gone, or came later, are refused by name.

    decides: see `Adapter.decides`.
    """
    rows = {key: row for key, row in settings_of(groups, version).items() if not row.fixed}
    words, leaves = words_of(version), {}
    for key, row in rows.items():
        unit, meaning = MEANINGS.get(key, ("", ""))
        row = row._replace(unit=row.unit or unit, meaning=row.meaning or meaning)
        schema = setting(row, words.get(key), decides=decides(key))
        if key == "lr_scheduler_type" and holds("<0.29", version):
            schema["enum"] = [word for word in schema["enum"] if word != "greedy"]  # BB-TRL-028
        if "pattern" in schema and takes_null(row, version):
            schema["pattern"] += f"|{NULL_TEXT}"
        leaves[key] = schema
    named = f"trl {version}" if framework == "trl" else f"{framework} under trl {version}"
    every = (row for group in groups for row in group.settings)
    others = dict(elsewhere(every, rows, named, "trl"))
    dropped = {one.key: refused(one.message) for one in GONE if one.key not in rows}
    return nested({**others, **dropped, **leaves})
