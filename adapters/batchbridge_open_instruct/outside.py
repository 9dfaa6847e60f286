"""Effects of Open-Instruct's settings that the schema has no field for; see `Adapter.decides`, `shared_settings`."""

from collections.abc import Mapping
from typing import Any

from batchbridge import Reading
from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import as_flag, as_names, as_text, from_hub, rollouts, whole_rollouts


def _data(value: Any, reading: Reading) -> Any:
    """A list of names and shares; one name, all of it."""
    listed = as_names(value.split(), reading) if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or len(listed) != 2 or str(listed[1]) not in ("1.0", "1"):
        return None
    return from_hub(listed[0], reading)


def _mixer(value: Any, reading: Reading) -> Any:
    return [value, "1.0"]


def _loggers(value: Any, reading: Reading) -> Any:
    """The run's loggers: Open-Instruct's only one is Weights & Biases."""
    on = as_flag(value, reading)
    return None if on is None else ("wandb",) if on else ()


def _tracking(value: Any, reading: Reading) -> Any:
    return {("wandb",): True, (): False}.get(value)


def _kept(value: Any, reading: Reading) -> Any:
    return value if isinstance(value, int) and value > 0 else None


SHARED: Mapping[str, SharedSetting] = {
    "model_name_or_path": SharedSetting(
        "model", "the model", as_text, needed="a model's folder or name on the Hugging Face Hub"
    ),
    "dataset_mixer_list": SharedSetting(
        "train_data",
        "the prompts",
        _data,
        _mixer,
        needed="a data set's name, whose column `dataset` names a verifier",
        blank=lambda name: [name, "1.0"],
    ),
    "with_tracking": SharedSetting("loggers", "", _loggers, _tracking),
    "output_dir": SharedSetting("output_folder", "", as_text),
    "save_freq": SharedSetting("save_every", "", rollouts, whole_rollouts),
    "keep_last_n_checkpoints": SharedSetting("kept_checkpoints", "", _kept),
    "wandb_project": SharedSetting("project", "", as_text, versions=">=2026.6.10"),
    "wandb_project_name": SharedSetting("project", "", as_text, versions="<2026.6.10"),
    "exp_name": SharedSetting("run_name", "", as_text),
    "run_name": SharedSetting("run_name", "", as_text),
    "gradient_checkpointing": SharedSetting("gradient_checkpointing", "", as_flag),
    "trust_remote_code": SharedSetting("trust_remote_code", "", as_flag),
}
"""Settings that other frameworks have, too."""

MODEL = ("model_revision", "use_peft", "lora_*", "load_in_*bit")
PROMPTS = ("dataset_*", "chat_template*", "tokenizer_*", "system_prompt*", "max_*token_length")
REWARDS = ("reward_*", "*_reward", "verification_*", "*_verifier*", "llm_judge_*", "code_api_url", "tools", "tool_*")
NOTHING = (
    *("wandb_*", "save_*", "push_to_hub", "hf_*", "eval_*"),
    *("try_*", "oe_eval_*", "dataset_*eval*", "dataset_local_cache_dir", "dataset_cache_mode", "dataset_skip_cache"),
    *("gs_*", "cache_*", "local_eval_*", "num_evals", "verbose"),
    *("checkpoint_state_*", "send_slack_alerts", "vllm_gpu_memory_utilization", "vllm_enforce_eager"),
)
CRITIC = ("vf_coef", "cliprange_value", "gamma", "lam")

OUTSIDE: Mapping[str, str | SharedSetting] = {
    **SHARED,
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
    **dict.fromkeys(CRITIC, "the critic, and advantages by its values"),
    "alpha": "the reference model",
}
"""Pattern of settings to what they decide; the first that fits counts. Source: the docstrings of the arguments in
open_instruct/grpo_fast.py, dataset_transformation.py and model_utils.py."""
