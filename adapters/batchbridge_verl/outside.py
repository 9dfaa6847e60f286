"""Effects of verl's settings that the schema has no field for; see `Adapter.decides`, `shared_settings`."""

from collections.abc import Mapping
from functools import partial

from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import (
    as_count,
    as_flag,
    as_text,
    generator,
    loggers,
    never,
    rollouts,
    whole_rollouts,
)

LOGGERS = ("wandb", "tensorboard", "swanlab", "mlflow", "trackio", "clearml")
"""Loggers that `trainer.logger` names beside the console and files. Source: verl 0.4.0 to 0.9.1 utils/tracking.py."""
HUB, PARQUET = "a model's folder or name on the Hugging Face Hub", "parquet files in verl's form"
VALIDATION = "parquet files to validate on: verl always asks for some"
_rewards = partial(SharedSetting, "rewards", "the rewards", as_text, never, needed="a Python file with compute_score")


SHARED: Mapping[str, SharedSetting] = {
    "actor_rollout_ref.model.path": SharedSetting("model", "the model", as_text, needed=HUB),
    "data.train_files": SharedSetting("train_data", "the prompts", never, never, needed=PARQUET),
    "data.val_files": SharedSetting("validation_data", "", never, never, needed=VALIDATION),
    "reward.custom_reward_function.path": _rewards(versions=">=0.7.1"),
    "custom_reward_function.path": _rewards(versions="<0.7.1"),
    "actor_rollout_ref.rollout.name": generator(),
    "trainer.logger": loggers(LOGGERS),
    "trainer.default_local_dir": SharedSetting("output_folder", "", as_text),
    "trainer.save_freq": SharedSetting("save_every", "", rollouts, whole_rollouts),
    "trainer.max_actor_ckpt_to_keep": SharedSetting("kept_checkpoints", "", as_count),
    "trainer.project_name": SharedSetting("project", "", as_text),
    "trainer.experiment_name": SharedSetting("run_name", "", as_text),
    "actor_rollout_ref.model.enable_gradient_checkpointing": SharedSetting("gradient_checkpointing", "", as_flag),
    "actor_rollout_ref.model.trust_remote_code": SharedSetting("trust_remote_code", "", as_flag),
}
"""Settings that other frameworks have, too."""

MODEL = (
    "*.model.path",
    "*.model.lora*",
    "*.model.target_modules",
    "*.model.exclude_modules",
    "*.model.override_config.*",
)
PROMPTS = (
    *("data.*_key", "data.custom_cls.*", "data.truncation", "data.apply_chat_template_kwargs*"),
    *("data.train_max_samples", "data.filter_overlong_prompts"),
)
REWARDS = ("custom_reward_function.*", "reward_model.*", "reward.*", "distillation.*", "*.multi_turn.*")
NOTHING = (
    *("trainer.test_freq", "trainer.val_*", "trainer.log_*", "trainer.max_*_ckpt_to_keep", "trainer.device"),
    *("*.val_kwargs.*", "data.val_*", "data.validation_shuffle", "global_profiler.*", "*.profiler.*", "ray_kwargs.*"),
    *("*_offload", "*.offload_policy", "*.enable_gradient_checkpointing", "*.use_torch_compile", "*.nccl_timeout"),
    *("*.reshard_after_forward", "*.forward_prefetch", "*.entropy_checkpointing"),
    *("*.entropy_from_logits_with_chunking", "*.gpu_memory_utilization", "*.free_cache_engine", "*.enforce_eager"),
    *("*.enable_chunked_prefill", "*.load_format"),
    *("*.max_num_batched_tokens", "*.max_num_seqs", "*.layered_summon", "*.update_weights_bucket_megabytes"),
    *("*.disable_log_stats", "*.trust_remote_code", "*.cudagraph_*", "*.mm_processor_cache_gb", "*_workers"),
)

OUTSIDE: Mapping[str, str | SharedSetting] = {
    **SHARED,
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
}
"""Pattern of keys to what they decide; the first that fits counts. Source: the comments of verl 0.4.0 to 0.9.1
trainer/config/*.yaml."""
