"""Open-Instruct's settings: which checkout has which, of what kind, with which default.

Open-Instruct is used from a checkout, so a version is the date of the checkout's commit. Only checkouts whose parsers
have been read are known; the same flag has other defaults in the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchbridge_open_instruct.names import OTHERS

CHECKOUTS: Mapping[str, str] = {
    "2024.11.20": "9c2d44bec, the release of Tülu 3: the PPO script",
    "2025.11.3": "the parent of bac939310, which deletes the PPO script",
    "2026.1.26": "v0.1.0",
    "2026.3.1": "v0.2.0",
    "2026.6.10": "v0.3.0",
    "2026.8.20": "e6c3044aa",
}
ALIASES: Mapping[str, str] = {"0.1.0": "2026.1.26", "0.2.0": "2026.3.1", "0.3.0": "2026.6.10"}
"""Tags and the dates of their commits."""
VERSIONS = ">=2024.11.20,<=2026.8.20"
NEWEST = "2026.8.20"
NEWEST_PPO = "2025.11.3"

GRPO_FAST, GRPO, PPO = "grpo_fast.py", "grpo.py", "ppo_vllm_thread_ray_gtrl.py"
SCRIPTS: Mapping[str, tuple[str, ...]] = {
    PPO: ("2024.11.20", "2025.11.3"),
    GRPO_FAST: ("2026.1.26", "2026.3.1", "2026.6.10", "2026.8.20"),
    GRPO: ("2026.6.10", "2026.8.20"),
}
"""Script to the checkouts in which it is read. grpo_fast.py is older than v0.1.0; its loss before is another one."""
SCRIPT = "script"
"""A key of ours: which script, where no command line says it."""

_GRPO = SCRIPTS[GRPO_FAST]
_PPO = SCRIPTS[PPO]
_TO_2 = _GRPO[:2]
_FROM_3 = _GRPO[2:]


@dataclass(frozen=True)
class Setting:
    """One native key. kind: int, float, bool, text, ints (a list); `?`: may be None. minimum: the least that makes
    sense of an integer. source: dataclass and field."""

    key: str
    kind: str
    default: Any
    checkouts: tuple[str, ...]
    source: str
    minimum: int | None = None


_LOADER = "StreamingDataLoaderConfig"
_EXPERIMENT = "Args in 2026.1.26 and 2026.3.1, GRPOExperimentConfig after"
_ARGS = "Args"
ROWS = (
    # ---- GRPO: data_loader.py
    Setting("num_unique_prompts_rollout", "int", 16, _GRPO, _LOADER, 0),
    Setting("num_samples_per_prompt_rollout", "int", 4, _GRPO, _LOADER, 0),
    Setting("pack_length", "int", 512, _GRPO, _LOADER, 1),
    Setting("max_prompt_token_length", "int", 256, _GRPO, _LOADER, 1),
    Setting("response_length", "int", 256, _GRPO, _LOADER, 1),
    Setting("async_steps", "int", 1, _TO_2, _LOADER, 0),
    Setting("async_steps", "int", 8, _FROM_3, _LOADER, 0),
    Setting("active_sampling", "bool", False, _GRPO, _LOADER),
    Setting("filter_zero_std_samples", "bool", True, _GRPO, _LOADER),
    Setting("mask_truncated_completions", "bool", False, _GRPO, _LOADER),
    Setting("advantage_normalization_type", "text", "standard", _TO_2, _LOADER),
    Setting("advantage_normalization_type", "text", "centered", _FROM_3, _LOADER),
    Setting("temperature", "float", 0.7, _GRPO[:3], _LOADER),
    Setting("temperature", "float", 1.0, _GRPO[3:], _LOADER),
    Setting("vllm_top_p", "float", 1.0, _GRPO, "VLLMConfig"),
    # ---- GRPO: the experiment
    Setting("total_episodes", "int", 100_000, _GRPO, _EXPERIMENT, 0),
    Setting("num_mini_batches", "int", 1, _GRPO, _EXPERIMENT, 1),
    Setting("num_epochs", "int", 1, _GRPO, _EXPERIMENT, 1),
    Setting("per_device_train_batch_size", "int", 1, _GRPO, f"{_EXPERIMENT}; the scripts' parser.set_defaults", 1),
    Setting("gradient_accumulation_steps", "int?", 1, _FROM_3, "TrainingConfig; never read by GRPO"),
    Setting("num_learners_per_node", "ints", (1,), _GRPO, _EXPERIMENT, 1),
    Setting("sequence_parallel_size", "int", 1, _GRPO, _EXPERIMENT, 1),
    Setting("deepspeed_stage", "int", 0, _GRPO, _EXPERIMENT, 0),
    Setting("fsdp_shard_degree", "int?", None, _FROM_3, _EXPERIMENT, 1),
    Setting("fsdp_num_replicas", "int?", None, _FROM_3, _EXPERIMENT, 1),
    Setting("seed", "int", 1, _TO_2, _EXPERIMENT),
    Setting("seed", "int", 42, _FROM_3, _EXPERIMENT),
    Setting("beta", "float", 0.05, _GRPO, _EXPERIMENT),
    Setting("kl_estimator", "int", 2, _GRPO, _EXPERIMENT, 0),
    Setting("clip_lower", "float", 0.2, _GRPO, _EXPERIMENT),
    Setting("clip_higher", "float", 0.2, _TO_2, _EXPERIMENT),
    Setting("clip_higher", "float", 0.272, _FROM_3, _EXPERIMENT),
    Setting("loss_fn", "text", "dapo", _GRPO, _EXPERIMENT),
    Setting("loss_denominator", "text", "token", _GRPO, _EXPERIMENT),
    Setting("load_ref_policy", "bool", True, _GRPO, _EXPERIMENT),
    Setting("ref_policy_update_freq", "int?", None, _GRPO, _EXPERIMENT, 1),
    Setting("alpha", "float", 0.6, _GRPO, _EXPERIMENT),
    Setting("use_vllm_logprobs", "bool", False, _GRPO, _EXPERIMENT),
    Setting("truncated_importance_sampling_ratio_cap", "float", 0.0, _TO_2, _EXPERIMENT),
    Setting("use_rho_correction", "bool", True, _FROM_3, _EXPERIMENT),
    Setting("rho_clamp_lower_bound", "float", 0.0, _FROM_3, _EXPERIMENT),
    Setting("rho_clamp_upper_bound", "float", 2.0, _FROM_3, _EXPERIMENT),
    Setting("rho_mask_lower_bound", "float", 0.0, _FROM_3, _EXPERIMENT),
    Setting("rho_mask_upper_bound", "float", 0.0, _FROM_3, _EXPERIMENT),
    Setting("learning_rate", "float", 2e-5, _GRPO, _EXPERIMENT),
    Setting("lr_scheduler_type", "text", "linear", _GRPO, _EXPERIMENT),
    Setting("warm_up_steps", "int", 0, _TO_2, _EXPERIMENT, 0),
    Setting("warmup_ratio", "float", 0.0, _GRPO, f"{_EXPERIMENT}; the scripts' parser.set_defaults"),
    Setting("weight_decay", "float", 0.0, _GRPO, _EXPERIMENT),
    Setting("set_weight_decay_on_bias_and_norm", "bool", True, _GRPO, _EXPERIMENT),
    Setting("max_grad_norm", "float", 1.0, _TO_2, _EXPERIMENT),
    Setting("max_grad_norm", "float?", 1.0, _FROM_3, f"{_EXPERIMENT}; the scripts' parser.set_defaults"),
    # ---- PPO
    Setting("local_rollout_batch_size", "int", 64, _PPO, _ARGS, 1),
    Setting("number_samples_per_prompt", "int", 1, _PPO, _ARGS, 1),
    Setting("local_mini_batch_size", "int", 64, _PPO, _ARGS, 1),
    Setting("per_device_train_batch_size", "int", 1, _PPO, _ARGS, 1),
    Setting("gradient_accumulation_steps", "int?", None, _PPO, f"{_ARGS}; overwritten by calculate_runtime_args"),
    Setting("num_mini_batches", "int", 1, _PPO, _ARGS),
    Setting("num_epochs", "int", 4, _PPO, _ARGS, 0),
    Setting("total_episodes", "int", 100_000, _PPO, _ARGS, 0),
    Setting("actor_num_gpus_per_node", "ints", (1,), _PPO, _ARGS, 1),
    Setting("deepspeed_stage", "int", 0, _PPO, _ARGS, 0),
    Setting("seed", "int", 1, _PPO, _ARGS),
    Setting("async_mode", "bool", True, _PPO, _ARGS),
    Setting("beta", "float", 0.05, _PPO, _ARGS),
    Setting("kl_estimator", "text", "kl1", _PPO, _ARGS),
    Setting("cliprange", "float", 0.2, _PPO, _ARGS),
    Setting("vf_coef", "float", 0.1, _PPO, _ARGS),
    Setting("cliprange_value", "float", 0.2, _PPO, _ARGS),
    Setting("gamma", "float", 1.0, _PPO, _ARGS),
    Setting("lam", "float", 0.95, _PPO, _ARGS),
    Setting("whiten_rewards", "bool", False, _PPO, _ARGS),
    Setting("max_prompt_token_length", "int?", None, _PPO[:1], "DatasetConfig", 1),
    Setting("max_prompt_token_length", "int", 256, _PPO[1:], _ARGS, 1),
    Setting("response_length", "int", 53, _PPO, _ARGS, 1),
    Setting("temperature", "float", 0.7, _PPO, _ARGS),
    Setting("learning_rate", "float", 2e-5, _PPO, _ARGS),
    Setting("lr_scheduler_type", "text", "linear", _PPO, _ARGS),
    Setting("warm_up_steps", "int", 0, _PPO, _ARGS, 0),
    Setting("warmup_ratio", "float", 0.0, _PPO, _ARGS),
)
LEARNERS: Mapping[str, str] = {
    PPO: "actor_num_gpus_per_node",
    GRPO_FAST: "num_learners_per_node",
    GRPO: "num_learners_per_node",
}
"""Script to the key whose sum is the world size; vLLM's devices are not counted."""


def checkout_of(version: str | None) -> str | None:
    """The known checkout that `version` names (a date or a tag); None: it is not known."""
    if version is None:
        return None
    named = ALIASES.get(version.removeprefix("v"), version)
    parts = named.split(".")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        named = ".".join(str(int(part)) for part in parts)
    return named if named in CHECKOUTS else None


def settings_of(checkout: str) -> dict[str, Setting]:
    """Key to row, of one checkout."""
    return {row.key: row for row in ROWS if checkout in row.checkouts}


def other_names(checkout: str) -> frozenset[str]:
    """Known keys without a meaning here."""
    return frozenset(name for checkouts, names in OTHERS if checkout in checkouts for name in names.split())
