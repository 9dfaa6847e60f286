"""EasyR1's settings by version: keys, kinds, defaults of its dataclasses, and what its published config.yaml says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from batchbridge.kit import omegaconf_kinds as kinds
from batchbridge.kit.clipping import canonical_bound, native_bound
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, WrongValue, or_null
from batchbridge.kit.omegaconf_kinds import structured
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
ENGINE_TOKENS = f"{ROLLOUT}max_num_batched_tokens"
MICRO = f"{ACTOR}micro_batch_size_per_device_for_update"
FORWARD = f"{ACTOR}micro_batch_size_per_device_for_experience"
BOUND = f"{ACTOR}max_grad_norm"
DYNAMIC, PASSES = f"{ACTOR}dynamic_batching", f"{ACTOR}ppo_epochs"
MODE, LOSS_TYPE = f"{ACTOR}loss_avg_mode", f"{ACTOR}loss_type"
ESTIMATOR = "algorithm.adv_estimator"
CRITIC_BATCH = "worker.critic.global_batch_size"
CRITIC_FORWARD = "worker.critic.micro_batch_size_per_device_for_experience"
WARMUP_STEPS, WARMUP_SHARE = f"{ACTOR}optim.lr_warmup_steps", f"{ACTOR}optim.lr_warmup_ratio"
FILTER, FILTER_LOW, FILTER_HIGH = (f"algorithm.{name}" for name in ("online_filtering", "filter_low", "filter_high"))
MAX_TRIES = "trainer.max_try_make_batch"
PROMPT_TOKENS, RESPONSE_TOKENS = f"{DATA}max_prompt_length", f"{DATA}max_response_length"


AGGREGATIONS = {"token": "token_mean", "seq": "sequence_mean"}
OPTIMIZERS, SCHEDULES, KL_TYPES = ("adamw", "adamw_bf16"), ("constant", "cosine"), ("fixed", "adaptive")
"""Names of `optim.strategy`, `optim.lr_scheduler_type` and `algorithm.kl_type`. Source: EasyR1 fsdp_workers.py
_build_model_optimizer, core_algos.get_kl_controller."""
KL_ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}
INT, FLOAT, BOOL, TEXT = (structured(kind) for kind in (kinds.INT, kinds.FLOAT, kinds.BOOL, kinds.TEXT))
OPTIONAL_INT, OPTIONAL_FLOAT = structured(kinds.OPTIONAL_INT), structured(kinds.OPTIONAL_FLOAT)
LIST = kinds.LIST
SHUFFLES = {True: "epoch_permutation", False: "none"}
_OPTIM = f"{ACTOR}optim."

SETTINGS = (
    # what one key decides alone has its canonical field beside it, and the words for it
    Key(NODES, INT, 1),
    Key(GPUS, INT, 8),
    Key(f"{ACTOR}ulysses_sequence_parallel_size", INT, 1, "topology.context_parallel", versions="<0.3.1"),
    Key(f"{ACTOR}ulysses_size", INT, 1, "topology.context_parallel", versions=">=0.3.1"),
    Key(f"{ROLLOUT}tensor_parallel_size", INT, 2),
    Key(GROUP, INT, 1, "rollout.completions_per_prompt"),
    Key(PASSES, INT, 1, "optimizer_step.passes_per_rollout"),
    Key(PROMPTS, INT, 512, "rollout.prompts_per_rollout"),
    Key(BATCH, INT, 256),
    Key(MINI_ROLLOUT, OPTIONAL_INT, None, "rollout.prompts_per_generation_batch", versions=">=0.3.1"),
    Key(FILTER, BOOL, False, versions=">=0.3.1"),
    Key(FILTER_LOW, FLOAT, 0.01, versions=">=0.3.1"),
    Key(FILTER_HIGH, FLOAT, 0.99, versions=">=0.3.1"),
    Key(f"{_OPTIM}lr", FLOAT, 1e-6, "carried.learning_rate"),
    Key(f"{_OPTIM}strategy", TEXT, "adamw", "carried.optimizer"),
    Key(f"{_OPTIM}weight_decay", FLOAT, 0.01, "carried.weight_decay"),
    Key(WARMUP_SHARE, FLOAT, 0.0),
    Key(PROMPT_TOKENS, INT, 512, "carried.max_prompt_tokens"),
    Key(RESPONSE_TOKENS, INT, 512, "carried.max_completion_tokens"),
    Key(f"{ROLLOUT}temperature", FLOAT, 1.0, "carried.temperature"),
    Key(f"{ROLLOUT}top_p", FLOAT, 1.0, "carried.top_p"),
    Key(f"{ROLLOUT}top_k", INT, -1, "carried.top_k"),
    Key(f"{ACTOR}fsdp.mp_param_dtype", TEXT, "bf16", "carried.precision"),
    Key(BOUND, FLOAT, 1.0, "carried.max_gradient_norm", (canonical_bound, native_bound)),
    Key(WARMUP_STEPS, OPTIONAL_INT, versions=">=0.3.1"),
    Key(f"{_OPTIM}betas", LIST, [0.9, 0.999]),
    Key(f"{_OPTIM}lr_scheduler_type", TEXT, "constant", versions=">=0.3.3.dev0"),
    Key(f"{_OPTIM}min_lr_ratio", OPTIONAL_FLOAT),
    Key(DYNAMIC, BOOL, True, versions=">=0.3.2"),
    Key(MICRO, INT, 4),
    Key(FORWARD, INT, 16),
    Key(MODE, TEXT, "token", "loss.policy.aggregation", AGGREGATIONS, versions=">=0.3.1"),
    Key(ESTIMATOR, TEXT, "grpo"),
    Key(LOSS_TYPE, TEXT, "default", versions=">=0.3.3.dev0"),
    Key(f"{ACTOR}clip_ratio_low", FLOAT, 0.2, "objective.clip_low"),
    Key(f"{ACTOR}clip_ratio_high", FLOAT, 0.3, "objective.clip_high"),
    Key(f"{ACTOR}clip_ratio_dual", FLOAT, 3.0, "objective.dual_clip"),
    Key("algorithm.disable_kl", BOOL, False),
    Key("algorithm.use_kl_loss", BOOL, False),
    Key("algorithm.kl_coef", FLOAT, 0.001),
    Key("algorithm.kl_penalty", TEXT, "kl"),
    Key(f"{DATA}seed", INT, 1, "order.seed"),
    Key(f"{DATA}shuffle", BOOL, True, "order.prompt_shuffle", SHUFFLES),
    Key("trainer.max_steps", OPTIONAL_INT, None, "horizon.rollouts"),
    Key("trainer.total_episodes", INT, 10, versions="<0.3.1"),
    Key("trainer.total_epochs", INT, 15, versions=">=0.3.1"),
    # what is not written
    Key(f"{DATA}filter_overlong_prompts", BOOL, True),
    Key("algorithm.kl_type", TEXT, "fixed"),
    Key("algorithm.kl_horizon", FLOAT, 0.0, versions="<0.3.1"),
    Key("algorithm.kl_horizon", FLOAT, 10000.0, versions=">=0.3.1"),
    Key(f"{ACTOR}padding_free", BOOL, False, versions="<0.3.1"),
    Key(f"{ACTOR}padding_free", BOOL, True, versions=">=0.3.1"),
    Key(f"{ACTOR}fsdp.enable_cpu_offload", BOOL, False),
    Key(ENGINE_TOKENS, INT, 8192),
    Key("trainer.critic_warmup", INT, 0),
    Key(MAX_TRIES, INT, 20, versions=">=0.3.1"),
    Key(CRITIC_BATCH, INT, 256),
    Key(CRITIC_FORWARD, INT, 16),
)
"""Settings that are read. Source: EasyR1 trainer/config.py, workers/actor/config.py, workers/rollout/config.py at those
versions."""

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
"""Values of examples/config.yaml (0.3.2 on) for the settings above. Source: EasyR1 b44b311."""
EXAMPLE_NAME = "examples/config.yaml"


@lru_cache(maxsize=16)
def settings_of(version: str) -> Mapping[str, Key]:
    """Key to its row in `version`."""
    return {row.key: row for row in SETTINGS if holds(row.versions, version)}


def _group(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    raise WrongValue("a group of settings")


_GROUP = Kind("dict", "a group of settings", _group, {"type": "object"})
NAMED_KINDS = {"int": INT, "float": FLOAT, "bool": BOOL, "str": TEXT, "list": LIST, "dict": _GROUP}
"""Kinds by the word that `keys.json` has for them."""


@lru_cache(maxsize=16)
def kinds_of(version: str) -> Mapping[str, Kind]:
    """Every key of a configuration in `version` with what its field takes, also those that decide nothing here.
    Source: EasyR1's own dataclasses, recorded by tests/adapters/easyr1/native/record_types.py."""
    types = {key: name for versions, keys in ranges().items() if holds(versions, version) for key, name in keys.items()}
    kinds = {key: (NAMED_KINDS[name.rstrip("?")], name.endswith("?")) for key, name in types.items()}
    return {key: or_null(kind) if optional else kind for key, (kind, optional) in kinds.items()}


def ranges() -> Mapping[str, Mapping[str, str]]:
    """Every key that some version has, with its type, by the versions that have it."""
    found: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_name("keys.json").read_bytes())
    return found


def groups_of(keys: Iterable[str]) -> frozenset[str]:
    """Every group of some keys."""
    return frozenset(key.rsplit(".", at)[0] for key in keys for at in range(1, key.count(".") + 1))
