"""Effects of settings of TRL and Open-R1 that the schema has no field for, and what other frameworks have of them.

See `Adapter.decides` and `Adapter.shared_settings`.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from batchbridge import Reading
from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import as_count, as_flag, as_names, as_text, from_hub, never
from batchbridge_trl.meaning import UNCARRIED

LOGGERS = (
    *("azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "mlflow", "neptune", "swanlab"),
    *("tensorboard", "trackio", "wandb"),
)
"""Loggers that `report_to` names. Source: transformers 4.52 integration_utils.py INTEGRATION_TO_CALLBACK; trackio
since."""


def _data(value: Any, reading: Reading) -> Any:
    config, split = reading.native.get("dataset_config"), reading.native.get("dataset_train_split")
    return from_hub(value, reading) if config is None and split in (None, "train") else None


def _rewards(value: Any, reading: Reading) -> Any:
    names = as_names(value, reading)
    weights = reading.native.get("reward_weights")
    if names is None or not weights:
        return None if names is None else ", ".join(names)
    return f"{', '.join(names)}, weights {', '.join(f'{weight:g}' for weight in weights)}"


def _loggers(value: Any, reading: Reading) -> Any:
    names = as_names(value, reading)
    return None if names is None or "all" in names else tuple(name for name in names if name != "none")


def _report_to(value: Any, reading: Reading) -> Any:
    return (list(value) or "none") if set(value) <= set(LOGGERS) else None


def _rollouts_between(value: Any, reading: Reading) -> Any:
    """The rollouts between two checkpoints: `save_steps` counts optimizer steps."""
    spec, strategy = reading.spec, str(reading.native.get("save_strategy"))
    if strategy == "no":
        return Fraction(0)
    if spec is None or strategy != "steps" or as_count(value, reading) is None:
        return None
    rollout, step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    return Fraction(value * step, rollout * spec.optimizer_step.passes_per_rollout) if rollout and step else None


def _save_steps(value: Any, reading: Reading) -> Any:
    spec = reading.spec
    if spec is None or not spec.completions_per_rollout or not spec.optimizer_step.completions_per_step:
        return None
    per_rollout = Fraction(spec.completions_per_rollout, spec.optimizer_step.completions_per_step)
    steps = value * per_rollout * spec.optimizer_step.passes_per_rollout
    return int(steps) if steps > 0 and steps.denominator == 1 else None


def _strategy(value: Any, reading: Reading) -> Any:
    return Fraction(0) if value == "no" or value is False else None


def _no_saves(value: Any, reading: Reading) -> Any:
    return None if value else "no"


def _generates_with_vllm(value: Any, reading: Reading) -> Any:
    return "vllm" if value is True or value == "true" else None


def _beside_vllm(reading: Reading) -> Mapping[str, Any]:
    """vLLM on the devices that train, and no correction that the specification does not have."""
    return {"vllm_mode": "colocate", "vllm_importance_sampling_correction": False}


SHARED: Mapping[str, SharedSetting] = {
    "model_name_or_path": SharedSetting(
        "model", "the model", as_text, needed="a model's folder or name on the Hugging Face Hub"
    ),
    "dataset_name": SharedSetting(
        "train_data", "the prompts", _data, beside=("dataset_config", "dataset_train_split"), needed="a data set's name"
    ),
    "dataset_prompt_column": SharedSetting("prompt_column", "the prompts", as_text, unsaid="prompt"),
    "reward_funcs": SharedSetting(
        *("rewards", "the rewards", _rewards, never),
        beside=("reward_weights",),
        needed="names of reward functions",
        blank=lambda name: [name],
    ),
    "use_vllm": SharedSetting(
        *("generator", "", _generates_with_vllm, lambda value, reading: True), versions=">=0.23", also=_beside_vllm
    ),
    "report_to": SharedSetting("loggers", "", _loggers, _report_to),
    "output_dir": SharedSetting("output_folder", "", as_text),
    "save_steps": SharedSetting("save_every", "", _rollouts_between, _save_steps),
    "save_strategy": SharedSetting("save_every", "", _strategy, _no_saves),
    "save_total_limit": SharedSetting("kept_checkpoints", "", as_count),
    "wandb_project": SharedSetting("project", "", as_text),
    "project": SharedSetting("project", "", as_text),
    "run_name": SharedSetting("run_name", "", as_text),
    "gradient_checkpointing": SharedSetting("gradient_checkpointing", "", as_flag),
    "trust_remote_code": SharedSetting("trust_remote_code", "", as_flag),
}
"""Settings that other frameworks have, too."""

MODEL = (
    *("dtype", "torch_dtype", "model_init_kwargs*", "cast_lm_head_to_fp32", "model_revision", "use_peft"),
    *("lora_*", "use_rslora", "use_dora", "load_in_*bit", "peft_*"),
)
PROMPTS = ("dataset_*", "datasets*", "streaming", "system_prompt", "chat_template*", "tools", "num_prompts")
REWARDS = (
    "reward_*",
    "cosine_*",
    "repetition_*",
    "max_completion_len",
    "soft_punish_cache",
    "code_*",
    "parallel_code_*",
)
NOTHING = (
    *("overwrite_output_dir", "trackio_*", "wandb_*", "log_*"),
    *("logging_*", "num_completions_to_print", "save_*", "hub_*", "push_to_hub*", "benchmarks", "callbacks"),
    *("do_train", "do_eval", "do_predict", "per_device_eval_batch_size", "config"),
    *("gradient_checkpointing*", "dataloader_num_workers", "dataloader_pin_memory", "disable_tqdm", "ddp_timeout"),
)

OUTSIDE: Mapping[str, str | SharedSetting] = {
    **SHARED,
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(UNCARRIED, "what BB-TRL-075 names"),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
    "vllm_importance_sampling_correction": "",
}
"""Pattern of keys to what they decide; the first that fits counts. Source: the docstrings of trl 0.18.0 to 1.16.0
GRPOConfig, ScriptArguments and ModelConfig, and of open_r1/configs.py 1416fa0."""
