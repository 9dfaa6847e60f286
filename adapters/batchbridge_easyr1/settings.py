"""EasyR1's settings by version: what those mean that decide something here, and what its published config.yaml says.

Every key, its type and its default stand in `declared.json`, which tests/upstream/declare.py writes from the
dataclasses of each version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from batchbridge.kit import omegaconf_kinds as kinds
from batchbridge.kit.clipping import canonical_bound, native_bound
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, WrongValue, or_null
from batchbridge.kit.omegaconf_kinds import structured
from batchbridge.kit.shipped_settings import Meant, rows, shipped
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
LIST = kinds.LIST
SHUFFLES = {True: "epoch_permutation", False: "none"}
_OPTIM = f"{ACTOR}optim."

_MEANT = (
    # what one key decides alone has its canonical field beside it, and the words for it
    *(Meant(name) for name in (NODES, GPUS)),
    *(
        Meant(f"{ACTOR}{name}", "topology.context_parallel")
        for name in ("ulysses_sequence_parallel_size", "ulysses_size")
    ),
    Meant(f"{ROLLOUT}tensor_parallel_size"),
    Meant(GROUP, "rollout.completions_per_prompt"),
    Meant(PASSES, "optimizer_step.passes_per_rollout"),
    Meant(PROMPTS, "rollout.prompts_per_rollout"),
    Meant(BATCH),
    Meant(MINI_ROLLOUT, "rollout.prompts_per_generation_batch"),
    *(Meant(name) for name in (FILTER, FILTER_LOW, FILTER_HIGH)),
    Meant(f"{_OPTIM}lr", "carried.learning_rate"),
    Meant(f"{_OPTIM}strategy", "carried.optimizer"),
    Meant(f"{_OPTIM}weight_decay", "carried.weight_decay"),
    Meant(WARMUP_SHARE),
    Meant(PROMPT_TOKENS, "carried.max_prompt_tokens"),
    Meant(RESPONSE_TOKENS, "carried.max_completion_tokens"),
    *(Meant(f"{ROLLOUT}{name}", f"carried.{name}") for name in ("temperature", "top_p", "top_k")),
    Meant(f"{ACTOR}fsdp.mp_param_dtype", "carried.precision"),
    Meant(BOUND, "carried.max_gradient_norm", (canonical_bound, native_bound)),
    Meant(WARMUP_STEPS),
    *(Meant(f"{_OPTIM}{name}") for name in ("betas", "lr_scheduler_type", "min_lr_ratio")),
    *(Meant(name) for name in (DYNAMIC, MICRO, FORWARD)),
    Meant(MODE, "loss.policy.aggregation", AGGREGATIONS),
    *(Meant(name) for name in (ESTIMATOR, LOSS_TYPE)),
    Meant(f"{ACTOR}clip_ratio_low", "objective.clip_low"),
    Meant(f"{ACTOR}clip_ratio_high", "objective.clip_high"),
    Meant(f"{ACTOR}clip_ratio_dual", "objective.dual_clip"),
    *(Meant(f"algorithm.{name}") for name in ("disable_kl", "use_kl_loss", "kl_coef", "kl_penalty")),
    Meant(f"{DATA}seed", "order.seed"),
    Meant(f"{DATA}shuffle", "order.prompt_shuffle", SHUFFLES),
    Meant("trainer.max_steps", "horizon.rollouts"),
    *(Meant(f"trainer.{name}") for name in ("total_episodes", "total_epochs")),
    # what is not written
    Meant(f"{DATA}filter_overlong_prompts"),
    *(Meant(f"algorithm.{name}") for name in ("kl_type", "kl_horizon")),
    *(Meant(f"{ACTOR}{name}") for name in ("padding_free", "fsdp.enable_cpu_offload")),
    *(Meant(name) for name in (ENGINE_TOKENS, "trainer.critic_warmup", MAX_TRIES, CRITIC_BATCH, CRITIC_FORWARD)),
)


def _group(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    raise WrongValue("a group of settings")


_GROUP = Kind("dict", "a group of settings", _group, {"type": "object"})
NAMED_KINDS = {"int": INT, "float": FLOAT, "bool": BOOL, "str": TEXT, "list": LIST, "dict": _GROUP}
"""Kinds by the word that `declared.json` has for them."""
_KINDS = NAMED_KINDS | {f"{word}?": or_null(kind) for word, kind in NAMED_KINDS.items()}
_TABLE = shipped("batchbridge_easyr1")["PPOConfig"]
SETTINGS = tuple(rows(_TABLE.only(one.key for one in _MEANT), _KINDS, _MEANT))
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


@lru_cache(maxsize=16)
def kinds_of(version: str) -> Mapping[str, Kind]:
    """Every key of a configuration in `version` with what its field takes, also those that decide nothing here."""
    return {row.key: row.kind for row in rows(_TABLE, _KINDS) if holds(row.versions, version)}


def versions_with() -> Mapping[str, str]:
    """Every key that some version has, and the range of those versions."""
    return {key: _TABLE.range_of(spans[0][0], spans[-1][1]) for key, spans in _TABLE.settings.items()}


def groups_of(keys: Iterable[str]) -> frozenset[str]:
    """Every group of some keys."""
    return frozenset(key.rsplit(".", at)[0] for key in keys for at in range(1, key.count(".") + 1))
