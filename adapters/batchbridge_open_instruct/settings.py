"""Open-Instruct's settings: which checkout has which, of what kind, with which default.

Open-Instruct is used from a checkout, so a version is the date of the checkout's commit. Only checkouts whose parsers
have been read are known; the same flag has other defaults in the next.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchbridge_open_instruct.names import OTHERS

CHECKOUTS: Mapping[str, str] = {
    "2024.11.20": "9c2d44bec, the release of Tülu 3: the PPO script",
    "2025.10.20": "fc22674da, the parent of 3a9a97e46: grpo_fast.py with the loss of before 0.1.0",
    "2025.11.3": "the parent of bac939310, which deletes the PPO script",
    "2026.1.26": "v0.1.0",
    "2026.3.1": "v0.2.0",
    "2026.6.10": "v0.3.0",
    "2026.8.20": "e6c3044aa",
}
ALIASES: Mapping[str, str] = {"0.1.0": "2026.1.26", "0.2.0": "2026.3.1", "0.3.0": "2026.6.10"}
"""Tags and the dates of their commits."""
VERSIONS = ">=2024.11.20"
"""Checkouts that are read: those of `CHECKOUTS`, and newer ones as the newest."""
NEWEST = "2026.8.20"
NEWEST_PPO = "2025.11.3"

GRPO_FAST, GRPO, PPO = "grpo_fast.py", "grpo.py", "ppo_vllm_thread_ray_gtrl.py"
SCRIPTS: Mapping[str, tuple[str, ...]] = {
    PPO: ("2024.11.20", "2025.11.3"),
    GRPO_FAST: ("2025.10.20", "2026.1.26", "2026.3.1", "2026.6.10", "2026.8.20"),
    GRPO: ("2026.6.10", "2026.8.20"),
}
"""Script to the checkouts in which it is read."""
SCRIPT = "script"
"""A key of ours: which script, where no command line says it."""

_FIRST = SCRIPTS[GRPO_FAST][:1]
_GRPO = SCRIPTS[GRPO_FAST][1:]
_PPO = SCRIPTS[PPO]
_TO_2 = _GRPO[:2]
_FROM_3 = _GRPO[2:]
_ALL = (*_FIRST, *_GRPO)
_BEFORE_3 = (*_FIRST, *_TO_2)


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
    Setting("num_unique_prompts_rollout", "int", 16, _ALL, _LOADER, 0),
    Setting("num_samples_per_prompt_rollout", "int", 4, _ALL, _LOADER, 0),
    Setting("pack_length", "int", 512, _ALL, _LOADER, 1),
    Setting("max_prompt_token_length", "int", 256, _ALL, _LOADER, 1),
    Setting("response_length", "int", 256, _ALL, _LOADER, 1),
    Setting("async_steps", "int", 1, _BEFORE_3, _LOADER, 0),
    Setting("async_steps", "int", 8, _FROM_3, _LOADER, 0),
    Setting("active_sampling", "bool", False, _GRPO, _LOADER),
    Setting("filter_zero_std_samples", "bool", True, _GRPO, _LOADER),
    Setting("mask_truncated_completions", "bool", False, _ALL, _LOADER),
    Setting("advantage_normalization_type", "text", "standard", _BEFORE_3, _LOADER),
    Setting("advantage_normalization_type", "text", "centered", _FROM_3, _LOADER),
    Setting("temperature", "float", 0.7, (*_FIRST, *_GRPO[:3]), _LOADER),
    Setting("temperature", "float", 1.0, _GRPO[3:], _LOADER),
    Setting("vllm_top_p", "float", 1.0, _ALL, "VLLMConfig"),
    # ---- GRPO: the experiment
    Setting("total_episodes", "int", 100_000, _ALL, _EXPERIMENT, 0),
    Setting("num_mini_batches", "int", 1, _ALL, _EXPERIMENT, 1),
    Setting("num_epochs", "int", 1, _ALL, _EXPERIMENT, 1),
    Setting("per_device_train_batch_size", "int", 1, _ALL, f"{_EXPERIMENT}; the scripts' parser.set_defaults", 1),
    Setting("gradient_accumulation_steps", "int?", 1, _FROM_3, "TrainingConfig; never read by GRPO"),
    Setting("num_learners_per_node", "ints", (1,), _ALL, _EXPERIMENT, 1),
    Setting("sequence_parallel_size", "int", 1, _GRPO, _EXPERIMENT, 1),
    Setting("deepspeed_stage", "int", 0, _ALL, _EXPERIMENT, 0),
    Setting("fsdp_shard_degree", "int?", None, _FROM_3, _EXPERIMENT, 1),
    Setting("fsdp_num_replicas", "int?", None, _FROM_3, _EXPERIMENT, 1),
    Setting("seed", "int", 1, _BEFORE_3, _EXPERIMENT),
    Setting("seed", "int", 42, _FROM_3, _EXPERIMENT),
    Setting("beta", "float", 0.05, _ALL, _EXPERIMENT),
    Setting("kl_estimator", "text", "kl3", _FIRST, _ARGS),
    Setting("kl_estimator", "int", 2, _GRPO, _EXPERIMENT, 0),
    Setting("masked_mean_axis", "int?", None, _FIRST, _ARGS),
    Setting("masked_mean_denominator", "float?", None, _FIRST, _ARGS),
    Setting("fill_completions", "bool", False, _FIRST, _ARGS),
    Setting("allow_world_padding", "bool", False, _FIRST, _ARGS),
    Setting("clip_lower", "float", 0.2, _ALL, _EXPERIMENT),
    Setting("clip_higher", "float", 0.2, _BEFORE_3, _EXPERIMENT),
    Setting("clip_higher", "float", 0.272, _FROM_3, _EXPERIMENT),
    Setting("loss_fn", "text", "dapo", _GRPO, _EXPERIMENT),
    Setting("loss_denominator", "text", "token", _GRPO, _EXPERIMENT),
    Setting("load_ref_policy", "bool", True, _GRPO, _EXPERIMENT),
    Setting("ref_policy_update_freq", "int?", None, _ALL, _EXPERIMENT, 1),
    Setting("alpha", "float", 0.6, _ALL, _EXPERIMENT),
    Setting("use_vllm_logprobs", "bool", False, _ALL, _EXPERIMENT),
    Setting("truncated_importance_sampling_ratio_cap", "float", 0.0, _BEFORE_3, _EXPERIMENT),
    Setting("use_rho_correction", "bool", True, _FROM_3, _EXPERIMENT),
    Setting("rho_clamp_lower_bound", "float", 0.0, _FROM_3, _EXPERIMENT),
    Setting("rho_clamp_upper_bound", "float", 2.0, _FROM_3, _EXPERIMENT),
    Setting("rho_mask_lower_bound", "float", 0.0, _FROM_3, _EXPERIMENT),
    Setting("rho_mask_upper_bound", "float", 0.0, _FROM_3, _EXPERIMENT),
    Setting("learning_rate", "float", 2e-5, _ALL, _EXPERIMENT),
    Setting("lr_scheduler_type", "text", "linear", _ALL, _EXPERIMENT),
    Setting("warm_up_steps", "int", 0, _BEFORE_3, _EXPERIMENT, 0),
    Setting("warmup_ratio", "float", 0.0, _ALL, f"{_EXPERIMENT}; the scripts' parser.set_defaults"),
    Setting("weight_decay", "float", 0.0, _ALL, _EXPERIMENT),
    Setting("set_weight_decay_on_bias_and_norm", "bool", True, _ALL, _EXPERIMENT),
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
IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "2025.10.20": {
        "active_sampling": False,
        "filter_zero_std_samples": True,
        "load_ref_policy": True,
        "loss_denominator": "token",
        "loss_fn": "dapo",
        "max_grad_norm": 1.0,
        "sequence_parallel_size": 1,
    },
}
"""What a checkout does where it has no setting for it. Source: grpo_fast.py, data_preparation_thread and
PolicyTrainerRayProcess; utils.py, get_train_ds_config; fc22674da."""
REMOVED: Mapping[str, tuple[str, str]] = {
    # flag of grpo_fast.py -> the day it went, and the commit
    "eval_freq": ("2025-07-16", "ca5501003"),
    "async_mode": ("2025-07-28", "80d6566ed"),
    "cliprange": ("2025-06-02", "49d13e92b"),
    "local_eval_freq": ("2025-08-08", "3fd39f834"),
    "num_evals": ("2025-08-08", "3fd39f834"),
    "max_token_length": ("2025-10-20", "3a9a97e46, #1097"),
    "fill_completions": ("2025-11-09", "da87d77d8"),
    "inference_batch_size": ("2025-11-17", "f87c66771"),
    "use_fp8_kv_cache": ("2025-11-17", "1986faa38"),
    "masked_mean_axis": ("2025-12-01", "7708f0adf, #1161: loss_denominator instead"),
    "masked_mean_denominator": ("2025-12-01", "7708f0adf, #1161: loss_denominator instead"),
    "update_progress_every": ("2025-12-08", "bf071f2d3"),
    "torch_dtype": ("2025-12-17", "03776b15f"),
    "allow_world_padding": ("2025-12-25", "b22984caf, #1308"),
    "code_tool_api_endpoint": ("2026-01-14", "31a1ba87d, #1340"),
    "number_documents_to_search": ("2026-01-14", "31a1ba87d, #1340"),
    "search_api_endpoint": ("2026-01-14", "31a1ba87d, #1340"),
    "shuffle_eval_dataset": ("2026-02-19", "c6e4c004c"),
    "max_tool_calls": ("2026-02-22", "fac7d14fe"),
    "warm_up_steps": ("2026-04-02", "0b847cf32"),
    "wandb_project_name": ("2026-04-02", "0b847cf32"),
    "truncated_importance_sampling_ratio_cap": ("2026-05-07", "e87c0fa28"),
}
"""Source: the fields of the dataclasses of grpo_fast.py's parser in each of its 381 commits to e6c3044aa."""
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


@functools.cache
def settings_of(checkout: str) -> Mapping[str, Setting]:
    """Key to row, of one checkout."""
    return {row.key: row for row in ROWS if checkout in row.checkouts}


def has_flag(checkout: str, key: str) -> bool:
    """Whether the parser of `checkout` knows `key`."""
    return key in settings_of(checkout) or key in other_names(checkout)


@functools.cache
def other_names(checkout: str) -> frozenset[str]:
    """Known keys without a meaning here."""
    return frozenset(name for checkouts, names in OTHERS if checkout in checkouts for name in names.split())
