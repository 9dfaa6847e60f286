"""Effects of OpenRLHF's options that the schema has no field for; see `Adapter.decides`, `shared_settings`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from batchbridge import Reading
from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import as_count, as_flag, as_text, from_hub, never, rollouts, whole_rollouts
from batchbridge_openrlhf.settings import names_of


def _data(value: Any, reading: Reading) -> Any:
    split = reading.given.get("data.prompt_split")
    return from_hub(value, reading) if split is None or split.value == "train" else None


def _loggers(value: Any, reading: Reading) -> Any:
    """A key of Weights & Biases, which is nobody's to write."""
    return ("wandb",) if as_text(value, reading) else None


def _own(value: Any, reading: Reading) -> Any:
    """A flag that is only ever given to turn something on."""
    return value or None


def _engines(value: Any, reading: Reading) -> Any:
    """An engine on each device that trains."""
    return None if reading.spec is None else reading.spec.topology.world_size


def _shared_devices(newest: bool, reading: Reading) -> Mapping[str, Any]:
    """Settings with which engines and trainer take turns on their devices."""
    keys = ("vllm.tensor_parallel_size", "train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
    values = zip(keys if newest else map(_OLDER.__getitem__, keys), (1, True, True, True), strict=True)
    return dict(values)


_NEWEST: Mapping[str, SharedSetting] = {
    "actor.model_name_or_path": SharedSetting(
        "model", "the model", as_text, needed="a model's folder or name on the Hugging Face Hub"
    ),
    "data.prompt_dataset": SharedSetting(
        "train_data", "the prompts", _data, beside=("data.prompt_split",), needed="a data set's name, or a file"
    ),
    "data.input_key": SharedSetting("prompt_column", "the prompts", as_text, unsaid="input"),
    "reward.remote_url": SharedSetting(
        "rewards", "the rewards", as_text, never, needed="a Python file with reward_func, or a reward server's address"
    ),
    "vllm.num_engines": SharedSetting("generator", "", lambda value, reading: "vllm" if value else None, _engines),
    "logger.wandb.key": SharedSetting("loggers", "", _loggers, never),
    "ckpt.output_dir": SharedSetting("output_folder", "", as_text),
    "ckpt.save_steps": SharedSetting("save_every", "", rollouts, whole_rollouts),
    "ckpt.max_num": SharedSetting("kept_checkpoints", "", as_count),
    "logger.wandb.project": SharedSetting("project", "", as_text),
    "logger.wandb.run_name": SharedSetting("run_name", "", as_text),
    "actor.gradient_checkpointing_enable": SharedSetting("gradient_checkpointing", "", as_flag, _own),
}
_OLDER = names_of("0.10.1")
"""Names before 0.10.2."""


def _beside(key: str, newest: bool) -> Callable[[Reading], Mapping[str, Any]]:
    return partial(_shared_devices, newest) if key == "vllm.num_engines" else _nothing


def _nothing(reading: Reading) -> Mapping[str, Any]:
    return {}


SHARED: Mapping[str, SharedSetting] = {
    **{key: replace(row, versions=">=0.10.2", also=_beside(key, True)) for key, row in _NEWEST.items()},
    **{_OLDER[key]: replace(row, versions="<0.10.2", also=_beside(key, False)) for key, row in _NEWEST.items()},
}
"""Options that other frameworks have, too."""

MODEL = (
    *("ds.lora.*", "ds.load_in_4bit", "actor.freeze_visual_encoder"),
    *("lora_*", "load_in_4bit", "target_modules", "freeze_visual_encoder"),
)
PROMPTS = (
    *("data.*", "prompt_split", "image_key", "label_key", "input_template", "apply_chat_template"),
    "disable_fast_tokenizer",
)
REWARDS = ("reward.*", "train.agent_func_path", "overlong_*")
CRITIC = (
    *("critic_pretrain", "critic.adam.betas", "critic.adam.eps", "critic.adam.weight_decay"),
    *("critic.lr_warmup_ratio", "critic.min_lr_ratio", "*value_head_prefix"),
)
UPDATES = (
    *("algo.kl.horizon", "kl_horizon", "train.ema_beta", "ema_beta", "ptx_coef"),
    *("algo.kl.target", "kl_target", "train.enable_ema", "enable_ema", "critic.freezing_steps", "freezing_actor_steps"),
    *("train.partial_rollout_enable", "partial_rollout", "*.muon.[mn]*"),
)
NOTHING = (
    *("logger.*", "eval.*", "local_rank", "ckpt.save_*", "ckpt.path", "ckpt.max_*"),
    *("reward.num_*", "reward.offload", "data.dataloader_num_workers", "*.gradient_checkpointing_*"),
    *("ckpt.best_metric_key", "ckpt.disable_ds", "ckpt.load_enable", "ckpt_path", "best_metric_key", "load_checkpoint"),
    *("disable_ds_ckpt", "max_ckpt_*", "save_hf_ckpt", "*save_value_network", "*use_*universal_ckpt"),
    *("wandb_*", "use_tensorboard", "perf", "eval_*", "dataloader_num_workers", "gradient_checkpointing*"),
    *("ref.offload", "ref_reward_offload", "actor_init_on_gpu", "colocate_critic_reward", "*deepcompile", "*zpg"),
    *("*overlap_comm", "*enable_sleep", "*enable_prefix_caching", "*enforce_eager", "*gpu_memory_utilization"),
    *("*sync_backend", "*sync_with_ray", "vllm_tensor_parallel_size", "use_ms"),
)

OUTSIDE: Mapping[str, str | SharedSetting] = {
    **SHARED,
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
    **dict.fromkeys(CRITIC, "the critic"),
    **dict.fromkeys(UPDATES, "what each update does"),
    "*": "",  # every option is in the tables by its newest name, and what the others mean is read
}
"""Pattern of options to what they decide; the first that fits counts. Source: the help of OpenRLHF 0.8.0 to 0.11.2
cli/train_ppo_ray.py."""
