"""Effects of EasyR1's settings that the schema has no field for; see `Adapter.decides`, `shared_settings`."""

from collections.abc import Mapping
from typing import Any

from batchbridge import Reading
from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import (
    as_count,
    as_flag,
    as_text,
    from_hub,
    loggers,
    never,
    rollouts,
    whole_rollouts,
)

LOGGERS = ("wandb", "tensorboard", "swanlab", "mlflow")
"""Loggers that `trainer.logger` names beside the console and files. Source: EasyR1 0.3.2
verl/utils/logger/logger.py."""


def _data(value: Any, reading: Reading) -> Any:
    """`name@split`."""
    name, _, split = value.partition("@") if isinstance(value, str) else ("", "", "")
    return from_hub(name, reading) if split in ("", "train") else None


def _train_files(value: Any, reading: Reading) -> Any:
    return f"{value}@train"


SHARED: Mapping[str, SharedSetting] = {
    "worker.actor.model.model_path": SharedSetting(
        "model", "the model", as_text, needed="a model's folder or name on the Hugging Face Hub"
    ),
    "data.train_files": SharedSetting(
        "train_data", "the prompts", _data, _train_files, needed="a data set: NAME@SPLIT, or parquet files"
    ),
    "data.val_files": SharedSetting(
        "validation_data", "", _data, never, needed="prompts to validate on: NAME@SPLIT, or parquet files"
    ),
    "data.prompt_key": SharedSetting("prompt_column", "the prompts", as_text, unsaid="prompt"),
    "worker.reward.reward_function": SharedSetting(
        "rewards", "the rewards", as_text, never, needed="a Python file and a function of it, FILE:FUNCTION"
    ),
    "trainer.logger": loggers(LOGGERS),
    "trainer.save_checkpoint_path": SharedSetting("output_folder", "", as_text),
    "trainer.save_freq": SharedSetting("save_every", "", rollouts, whole_rollouts),
    "trainer.save_limit": SharedSetting("kept_checkpoints", "", as_count),
    "trainer.project_name": SharedSetting("project", "", as_text),
    "trainer.experiment_name": SharedSetting("run_name", "", as_text),
    "worker.actor.model.enable_gradient_checkpointing": SharedSetting("gradient_checkpointing", "", as_flag),
    "worker.actor.model.trust_remote_code": SharedSetting("trust_remote_code", "", as_flag),
}
"""Settings that other frameworks have, too."""

MODEL = ("worker.actor.model.*",)
PROMPTS = (
    *("data.*_key", "data.image_dir", "data.video_fps", "data.*_pixels", "data.format_prompt"),
    "data.filter_overlong_prompts",
)
REWARDS = ("worker.reward.*", "algorithm.filter_key")
NOTHING = (
    *("trainer.val_*", "trainer.save_*"),
    *("data.val_*", "worker.rollout.val_override_config.*", "*.enable_gradient_checkpointing", "*.trust_remote_code"),
    *("worker.*.fsdp.enable_*", "worker.*.offload.*", "worker.rollout.gpu_memory_utilization", "*.disable_tqdm"),
    *("worker.rollout.enforce_eager", "worker.rollout.enable_chunked_prefill", "*.max_num_batched_tokens"),
    *("worker.rollout.tensor_parallel_size", "worker.rollout.limit_images"),
)

OUTSIDE: Mapping[str, str | SharedSetting] = {
    **SHARED,
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys((*PROMPTS, "data.override_chat_template"), "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
}
"""Pattern of keys to what they decide; the first that fits counts. Source: EasyR1 0.3.2 examples/config.yaml."""
