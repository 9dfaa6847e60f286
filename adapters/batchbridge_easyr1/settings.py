"""EasyR1's settings by version: keys, kinds, defaults of its dataclasses, and what its published config.yaml says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pkgutil import get_data
from typing import Any

from batchbridge.kit.versions import holds as holds

VERSIONS = ">=0.3.0"
"""Versions that are read. Rows are complete for the tags v0.3.0, v0.3.1, v0.3.2, and 0.3.3.dev0 (b44b311, 2026-07-30);
a newer version is read as that."""
OLDEST_ENFORCED = "0.3.2"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "0.3.3.dev0"

DATA, ACTOR, ROLLOUT = "data.", "worker.actor.", "worker.rollout."
NODES, GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
PROMPTS, MINI_ROLLOUT = f"{DATA}rollout_batch_size", f"{DATA}mini_rollout_batch_size"
GROUP, BATCH = f"{ROLLOUT}n", f"{ACTOR}global_batch_size"
MICRO = f"{ACTOR}micro_batch_size_per_device_for_update"
FORWARD = f"{ACTOR}micro_batch_size_per_device_for_experience"
BOUND = f"{ACTOR}max_grad_norm"
DYNAMIC, PASSES = f"{ACTOR}dynamic_batching", f"{ACTOR}ppo_epochs"
MODE, LOSS_TYPE = f"{ACTOR}loss_avg_mode", f"{ACTOR}loss_type"
ESTIMATOR = "algorithm.adv_estimator"
CRITIC_BATCH = "worker.critic.global_batch_size"
CRITIC_FORWARD = "worker.critic.micro_batch_size_per_device_for_experience"
WARMUP_STEPS, WARMUP_SHARE = f"{ACTOR}optim.lr_warmup_steps", f"{ACTOR}optim.lr_warmup_ratio"
MAX_TRIES = "trainer.max_try_make_batch"
PROMPT_TOKENS, RESPONSE_TOKENS = f"{DATA}max_prompt_length", f"{DATA}max_response_length"


@dataclass(frozen=True)
class Setting:
    """One key: its kind (as in verl's adapter), its default, and the versions that know it (empty: all)."""

    key: str
    kind: str
    default: Any
    versions: str = ""


SETTINGS = tuple(
    Setting(*row)
    for row in (
        (PROMPTS, "int", 512),
        (MINI_ROLLOUT, "int?", None, ">=0.3.1"),
        (PROMPT_TOKENS, "int", 512),
        (RESPONSE_TOKENS, "int", 512),
        (f"{DATA}shuffle", "bool", True),
        (f"{DATA}seed", "int", 1),
        (f"{DATA}filter_overlong_prompts", "bool", True),
        (ESTIMATOR, "str", "grpo"),
        ("algorithm.disable_kl", "bool", False),
        ("algorithm.use_kl_loss", "bool", False),
        ("algorithm.kl_penalty", "str", "kl"),
        ("algorithm.kl_coef", "float", 0.001),
        ("algorithm.kl_type", "str", "fixed"),
        ("algorithm.kl_horizon", "float", 0.0, "<0.3.1"),
        ("algorithm.kl_horizon", "float", 10000.0, ">=0.3.1"),
        ("algorithm.online_filtering", "bool", False, ">=0.3.1"),
        (BATCH, "int", 256),
        (MICRO, "int", 4),
        (FORWARD, "int", 16),
        (BOUND, "float", 1.0),
        (f"{ACTOR}clip_ratio_low", "float", 0.2),
        (f"{ACTOR}clip_ratio_high", "float", 0.3),
        (f"{ACTOR}clip_ratio_dual", "float", 3.0),
        (MODE, "str", "token", ">=0.3.1"),
        (LOSS_TYPE, "str", "default", ">=0.3.3.dev0"),
        (PASSES, "int", 1),
        (f"{ACTOR}padding_free", "bool", False, "<0.3.1"),
        (f"{ACTOR}padding_free", "bool", True, ">=0.3.1"),
        (DYNAMIC, "bool", True, ">=0.3.2"),
        (f"{ACTOR}ulysses_sequence_parallel_size", "int", 1, "<0.3.1"),
        (f"{ACTOR}ulysses_size", "int", 1, ">=0.3.1"),
        (f"{ACTOR}optim.lr", "float", 1e-6),
        (f"{ACTOR}optim.betas", "list", [0.9, 0.999]),
        (f"{ACTOR}optim.weight_decay", "float", 0.01),
        (f"{ACTOR}optim.strategy", "str", "adamw"),
        (f"{ACTOR}optim.lr_warmup_ratio", "float", 0.0),
        (f"{ACTOR}optim.lr_warmup_steps", "int?", None, ">=0.3.1"),
        (f"{ACTOR}optim.min_lr_ratio", "float?", None),
        (f"{ACTOR}optim.lr_scheduler_type", "str", "constant", ">=0.3.3.dev0"),
        (f"{ACTOR}fsdp.enable_cpu_offload", "bool", False),
        (f"{ACTOR}fsdp.mp_param_dtype", "str", "bf16"),
        (GROUP, "int", 1),
        (f"{ROLLOUT}temperature", "float", 1.0),
        (f"{ROLLOUT}top_p", "float", 1.0),
        (f"{ROLLOUT}top_k", "int", -1),
        (f"{ROLLOUT}tensor_parallel_size", "int", 2),
        (f"{ROLLOUT}max_num_batched_tokens", "int", 8192),
        ("trainer.total_episodes", "int", 10, "<0.3.1"),
        ("trainer.total_epochs", "int", 15, ">=0.3.1"),
        ("trainer.max_steps", "int?", None),
        (NODES, "int", 1),
        (GPUS, "int", 8),
        ("trainer.critic_warmup", "int", 0),
        (MAX_TRIES, "int", 20, ">=0.3.1"),
        (CRITIC_BATCH, "int", 256),
        (CRITIC_FORWARD, "int", 16),
    )
)
"""Source: EasyR1 trainer/config.py, workers/actor/config.py, workers/rollout/config.py at those versions."""

FREE_GROUPS = (
    "worker.actor.model.override_config",
    "worker.critic.model.override_config",
    "worker.reward.reward_function_kwargs",
    "worker.reward.score_function_kwargs",
    "worker.rollout.val_override_config",
)
"""Dictionaries that take any key."""

SET_BY_EASYR1 = frozenset(
    f"worker.{group}.{name}"
    for group, names in {
        "actor": "global_batch_size_per_device disable_kl use_kl_loss kl_penalty kl_coef",
        "actor.optim": "training_steps",
        "critic": "global_batch_size_per_device",
        "critic.optim": "training_steps",
        "rollout": "prompt_length response_length trust_remote_code",
        "ref": "micro_batch_size_per_device_for_experience padding_free dynamic_batching "
        "ulysses_size ulysses_sequence_parallel_size use_torch_compile",
    }.items()
    for name in names.split()
)
"""Keys that a configuration may give and EasyR1 overwrites. Source: its "auto keys", PPOConfig.post_init,
WorkerConfig.post_init."""

EXAMPLE: Mapping[str, Any] = {
    PROMPT_TOKENS: 2048,
    RESPONSE_TOKENS: 2048,
    PROMPTS: 512,
    "algorithm.use_kl_loss": True,
    "algorithm.kl_penalty": "low_var_kl",
    "algorithm.kl_coef": 0.01,
    BATCH: 128,
    MICRO: 1,
    FORWARD: 2,
    GROUP: 5,
    f"{ROLLOUT}tensor_parallel_size": 2,
    "trainer.total_epochs": 15,
    NODES: 1,
    GPUS: 8,
}
"""What examples/config.yaml (0.3.2 on) says about the settings above. Source: EasyR1 b44b311."""
EXAMPLE_NAME = "examples/config.yaml"


def is_known(version: str) -> bool:
    """Whether the rows are complete for `version`."""
    try:
        return holds(VERSIONS, version)
    except ValueError:  # no version, or a number of more digits than Python reads
        return False


@lru_cache(maxsize=16)
def settings_of(version: str) -> Mapping[str, Setting]:
    """Key to its row in `version`."""
    return {row.key: row for row in SETTINGS if holds(row.versions, version)}


@lru_cache(maxsize=16)
def keys_of(version: str) -> frozenset[str]:
    """Every key of a configuration in `version`, also those that decide nothing here. Source: EasyR1's own dataclasses,
    recorded by tests/adapters/easyr1/native/record.py."""
    ranges = json.loads(get_data("batchbridge_easyr1", "keys.json") or b"")
    return frozenset(key for versions, keys in ranges.items() if holds(versions, version) for key in keys)


@lru_cache(maxsize=16)
def groups_of(version: str) -> frozenset[str]:
    """Every group of the keys of `version`."""
    return frozenset(key.rsplit(".", at)[0] for key in keys_of(version) for at in range(1, key.count(".") + 1))
