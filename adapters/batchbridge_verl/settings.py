"""verl's settings by version: every key of its composed configuration, and the kinds of those that matter here.

Keys and defaults stand in `defaults.json`, one row per key: [first version, last version, default], both by index into
its `versions`; engines other than FSDP have the rows that differ. They are those of the wheels' own composed YAML, so
that verl need not be installed. `SETTINGS` lists what is read, with its kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pkgutil import get_data
from typing import Any, NamedTuple

from batchbridge.kit.versions import holds as holds
from batchbridge.kit.versions import is_release

VERSIONS = ">=0.4.0"
"""Versions that are read; one newer than `NEWEST` as that. Rows are complete, wheel by wheel, for 0.4.0, 0.4.1, 0.5.0,
0.6.0, 0.6.1, 0.7.0, 0.7.1, 0.8.0, 0.9.0 and 0.9.1."""
OLDEST_ENFORCED = "0.8.0"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "0.9.1"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""
ENGINES = ("fsdp", "megatron", "veomni", "torchtitan")
ENGINE = "model_engine"
"""The key that chooses the engine from 0.7.1 on (`dp` is FSDP), Megatron from 0.8.0 on. Source: verl 0.7.1 to 0.9.1
trainer/config/model_engine."""

UNRECORDED = "(a path)"
"""What stands in the place of a default that is a machine's path."""

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
REFERENCE = "actor_rollout_ref.ref."
CRITIC = "critic."


class Setting(NamedTuple):
    """One key that is read: its kind (`int`, `float`, `bool`, `str`, `list`, `any`; `?`: null is legal), and what holds
    where the version's configuration has no such key."""

    key: str
    kind: str
    absent: Any = None


SETTINGS = tuple(
    Setting(*row)
    for row in (
        ("trainer.nnodes", "int", 1),
        ("trainer.n_gpus_per_node", "int", 8),
        ("trainer.balance_batch", "bool", True),
        ("trainer.total_epochs", "int", 30),
        ("trainer.total_training_steps", "int?", None),
        ("trainer.critic_warmup", "int", 0),
        ("trainer.use_v1", "bool", False),
        ("trainer.use_legacy_worker_impl", "str", "enable"),
        ("trainer.v1.trainer_mode", "str", "sync"),
        ("trainer.v1.sampler.max_off_policy_threshold", "int?", None),
        ("trainer.v1.sampler.max_off_policy_strategy", "str", "drop"),
        ("trainer.v1.sampler.sync_refill_failed_groups", "bool", False),
        ("data.train_batch_size", "int", 1024),
        ("data.gen_batch_size", "int?", None),
        ("data.shuffle", "bool", True),
        ("data.seed", "int?", 1),  # verl 0.4.0 to 0.6.0 main_ppo.create_rl_sampler: data_config.get("seed", 1)
        ("data.dataloader_num_workers", "int", 8),
        ("data.max_prompt_length", "int", 512),
        ("data.max_response_length", "int", 512),
        ("data.truncation", "str", "error"),
        ("data.filter_overlong_prompts", "bool", False),
        ("data.train_max_samples", "int", -1),
        (f"{ACTOR}strategy", "str", "fsdp"),
        (f"{ACTOR}ppo_mini_batch_size", "int", 256),
        (f"{ACTOR}ppo_micro_batch_size", "int?", None),
        (f"{ACTOR}ppo_micro_batch_size_per_gpu", "int?", None),
        (f"{ACTOR}use_dynamic_bsz", "bool", False),
        (f"{ACTOR}ppo_max_token_len_per_gpu", "int", 16384),
        (f"{ACTOR}ppo_epochs", "int", 1),
        (f"{ACTOR}shuffle", "bool", False),
        (f"{ACTOR}data_loader_seed", "int?", None),
        (f"{ACTOR}loss_agg_mode", "str", "token-mean"),
        (f"{ACTOR}loss_scale_factor", "int?", None),
        (f"{ACTOR}clip_ratio", "float", 0.2),
        (f"{ACTOR}clip_ratio_low", "float?", 0.2),
        (f"{ACTOR}clip_ratio_high", "float?", 0.2),
        (f"{ACTOR}clip_ratio_c", "float", 3.0),
        (f"{ACTOR}entropy_coeff", "float", 0.0),
        (f"{ACTOR}use_kl_loss", "bool", False),
        (f"{ACTOR}kl_loss_coef", "float", 0.001),
        (f"{ACTOR}kl_loss_type", "str", "low_var_kl"),
        (f"{ACTOR}policy_loss.loss_mode", "str", "vanilla"),
        (f"{ACTOR}grad_clip", "float", 1.0),
        (f"{ACTOR}ulysses_sequence_parallel_size", "int", 1),
        (f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size", "int", 1),
        (f"{ACTOR}fsdp_config.dtype", "str", "bfloat16"),
        (f"{ACTOR}fsdp_config.mixed_precision.param_dtype", "str?", None),
        (f"{ACTOR}fsdp_config.mixed_precision.reduce_dtype", "str?", None),
        (f"{ACTOR}fsdp_config.mixed_precision.buffer_dtype", "str?", None),
        (f"{ACTOR}megatron.tensor_model_parallel_size", "int", 1),
        (f"{ACTOR}megatron.pipeline_model_parallel_size", "int", 1),
        (f"{ACTOR}megatron.context_parallel_size", "int", 1),
        (f"{ACTOR}megatron.dtype", "str", "bfloat16"),
        (f"{ACTOR}megatron.router_replay.mode", "str", "disabled"),
        (f"{ACTOR}veomni.ulysses_parallel_size", "int", 1),
        (f"{ACTOR}torchtitan.tensor_parallel_size", "int", 1),
        (f"{ACTOR}torchtitan.pipeline_parallel_size", "int", 1),
        (f"{ACTOR}torchtitan.context_parallel_size", "int", 1),
        (f"{ACTOR}optim.lr", "float", 1e-06),
        (f"{ACTOR}optim.lr_warmup_steps", "int?", -1),
        (f"{ACTOR}optim.lr_warmup_steps_ratio", "float", 0.0),
        (f"{ACTOR}optim.warmup_style", "str?", None),
        (f"{ACTOR}optim.lr_scheduler_type", "str?", None),
        (f"{ACTOR}optim.lr_decay_style", "str?", None),
        (f"{ACTOR}optim.decay_type", "str?", None),
        (f"{ACTOR}optim.min_lr_ratio", "float?", None),
        (f"{ACTOR}optim.num_cycles", "float", 0.5),
        (f"{ACTOR}optim.weight_decay", "float", 0.01),
        (f"{ACTOR}optim.betas", "list", [0.9, 0.999]),
        (f"{ACTOR}optim.eps", "float", 1e-08),
        (f"{ACTOR}optim.clip_grad", "float", 1.0),
        (f"{ACTOR}optim.grad_clip", "float?", None),
        (f"{ACTOR}optim.optimizer", "str", "AdamW"),
        (f"{ACTOR}optim.optimizer_impl", "str", "torch.optim"),
        (f"{ACTOR}optim.override_optimizer_config.lr", "float?", None),
        (f"{ACTOR}optim.override_optimizer_config.weight_decay", "float?", None),
        (f"{ACTOR}optim.override_optimizer_config.betas", "list?", None),
        (f"{ACTOR}optim.override_optimizer_config.eps", "float?", None),
        (f"{ACTOR}optim.override_optimizer_config.adam_beta1", "float?", None),
        (f"{ACTOR}optim.override_optimizer_config.adam_beta2", "float?", None),
        (f"{ACTOR}optim.override_optimizer_config.adam_eps", "float?", None),
        (f"{ACTOR}optim.name", "str?", None),
        (f"{ROLLOUT}name", "str", "vllm"),
        (f"{ROLLOUT}n", "int", 1),
        (f"{ROLLOUT}temperature", "float", 1.0),
        (f"{ROLLOUT}top_p", "float", 1.0),
        (f"{ROLLOUT}top_k", "int", -1),
        (f"{ROLLOUT}mode", "str", "async"),
        (f"{ROLLOUT}tensor_model_parallel_size", "int", 2),
        (f"{ROLLOUT}data_parallel_size", "int", 1),
        (f"{ROLLOUT}pipeline_model_parallel_size", "int", 1),
        (f"{ROLLOUT}expert_parallel_size", "int", 1),
        (f"{ROLLOUT}val_kwargs.do_sample", "bool", False),
        (f"{ROLLOUT}multi_turn.enable", "bool", False),
        (f"{ROLLOUT}multi_turn.tool_config_path", "str?", None),
        (f"{ROLLOUT}multi_turn.interaction_config_path", "str?", None),
        (f"{ROLLOUT}log_prob_micro_batch_size", "int?", None),
        (f"{ROLLOUT}log_prob_micro_batch_size_per_gpu", "int?", None),
        (f"{ROLLOUT}log_prob_use_dynamic_bsz", "bool", False),
        (f"{ROLLOUT}log_prob_max_token_len_per_gpu", "int", 16384),
        (f"{REFERENCE}log_prob_micro_batch_size", "int?", None),
        (f"{REFERENCE}log_prob_micro_batch_size_per_gpu", "int?", None),
        (f"{REFERENCE}ulysses_sequence_parallel_size", "int", 1),
        ("actor_rollout_ref.model.use_remove_padding", "bool", False),
        ("algorithm.adv_estimator", "str", "gae"),
        ("algorithm.norm_adv_by_std_in_grpo", "bool", True),
        ("algorithm.use_kl_in_reward", "bool", False),
        ("algorithm.kl_penalty", "str", "kl"),
        ("algorithm.kl_ctrl.type", "str", "fixed"),
        ("algorithm.kl_ctrl.kl_coef", "float", 0.001),
        ("algorithm.use_pf_ppo", "bool", False),
        ("algorithm.filter_groups.enable", "bool", False),
        ("algorithm.filter_groups.metric", "str?", None),
        ("algorithm.filter_groups.max_num_gen_batches", "int", 0),
        ("algorithm.rollout_correction.rollout_is", "str?", None),
        ("algorithm.rollout_correction.rollout_is_threshold", "any", None),
        ("algorithm.rollout_correction.rollout_rs", "str?", None),
        ("algorithm.rollout_correction.rollout_rs_threshold", "any", None),
        ("algorithm.rollout_correction.bypass_mode", "bool", False),
        (f"{CRITIC}enable", "bool?", None),
        (f"{CRITIC}strategy", "str", "fsdp"),
        (f"{CRITIC}ppo_mini_batch_size", "int", 256),
        (f"{CRITIC}ppo_micro_batch_size", "int?", None),
        (f"{CRITIC}ppo_micro_batch_size_per_gpu", "int?", None),
        (f"{CRITIC}use_dynamic_bsz", "bool", False),
        (f"{CRITIC}ulysses_sequence_parallel_size", "int", 1),
        (f"{CRITIC}megatron.tensor_model_parallel_size", "int", 1),
        (f"{CRITIC}megatron.pipeline_model_parallel_size", "int", 1),
        (f"{CRITIC}megatron.context_parallel_size", "int", 1),
        (f"{CRITIC}megatron.dtype", "str", "bfloat16"),
        (f"{CRITIC}optim.warmup_style", "str?", None),
        (f"{CRITIC}optim.lr_scheduler_type", "str?", None),
        (f"{CRITIC}model.use_remove_padding", "bool", False),
        ("reward_model.enable", "bool?", False),
        ("reward_model.use_dynamic_bsz", "bool", False),
        ("reward_model.use_reward_loop", "bool", False),
        ("reward_model.micro_batch_size", "int?", None),
        ("reward_model.micro_batch_size_per_gpu", "int?", None),
    )
)
BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS}

READ_THOUGH_NOT_SHIPPED: Mapping[str, tuple[str | None, str]] = {
    # key: (engine, None: any; versions)
    "data.seed": (None, ""),
    "data.gen_batch_size": (None, ""),
    "data.dataloader_num_workers": (None, ""),
    f"{ACTOR}optim.betas": ("fsdp", ""),
    f"{ACTOR}optim.grad_clip": (None, ">=0.6.0"),
    f"{ACTOR}fsdp_config.mixed_precision.param_dtype": ("fsdp", ""),
    f"{ACTOR}fsdp_config.mixed_precision.reduce_dtype": ("fsdp", ""),
    f"{ACTOR}fsdp_config.mixed_precision.buffer_dtype": ("fsdp", ""),
}
"""Keys that are read where the composed configuration has none, and that take a `+` on a command line. Source: verl
0.4.0 to 0.9.1 ray_trainer.py and main_ppo.create_rl_sampler (`data_config.get`); fsdp_workers.py and
workers/engine/fsdp (`optim_config.get("betas")`, `mixed_precision`); 0.6.0 on OptimizerConfig.grad_clip."""

GONE: Mapping[str, tuple[str, str | None, str]] = {
    "data.sampler.class_path": ("0.8.0", "data.custom_cls.path", "verl 0.8.0 ppo_trainer.yaml"),
    "data.sampler.class_name": ("0.8.0", "data.custom_cls.name", "verl 0.8.0 ppo_trainer.yaml"),
    "trainer.use_legacy_worker_impl": ("0.8.0", None, "verl 0.8.0 removed fsdp_workers and dp_actor"),
    f"{ACTOR}checkpoint.contents": ("0.4.1", f"{ACTOR}checkpoint.save_contents", "verl 0.4.1 ppo_trainer.yaml"),
    f"{ACTOR}optim.warmup_style": ("never", f"{ACTOR}optim.lr_scheduler_type", "verl 0.6.0 FSDPOptimizerConfig"),
    "algorithm.rollout_is": ("0.6.1", "algorithm.rollout_correction.rollout_is", "verl 0.6.1 ppo_trainer.yaml"),
}
"""Keys that a newer version does not know: since when, what says it now (None: nothing), and the source."""


def is_known(version: str) -> bool:
    """Whether the rows are complete for `version`. Development versions lie between releases and are not known."""
    if is_release(version):
        return holds(VERSIONS, version)
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    try:
        parsed = Version(version)
    except ValueError:  # no version, or a number of more digits than Python reads
        return False
    return not parsed.is_devrelease and SpecifierSet(VERSIONS).contains(parsed)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(get_data("batchbridge_verl", "defaults.json") or b"")
    return table


def engines_of(version: str) -> tuple[str, ...]:
    """The engines that `version` has a composed configuration for."""
    return tuple(engine for engine in ENGINES if holds(f">={_table()['first'][engine]}", version))


def reads(key: str, version: str, engine: str, known: Mapping[str, Any]) -> bool:
    """Whether anything reads `key` in `version` with `engine`, whose composed configuration is `known`."""
    if key in known:
        return True
    only, versions = READ_THOUGH_NOT_SHIPPED.get(key, ("", ""))
    if only in (None, engine):
        return holds(versions, version)
    group = key.rpartition(".")[0]
    return group in known and known[group] in (None, {})


def chosen_by_key(engine: str, version: str) -> bool:
    """Whether `ENGINE` chooses this engine; before, a configuration of its own does."""
    return holds(">=0.8.0" if engine == "megatron" else ">=0.7.1", version)


def index_of(version: str) -> int:
    """The row of the tables that holds for `version`."""
    return [at for at, name in enumerate(_table()["versions"]) if holds(f">={name}", version)][-1]


@lru_cache(maxsize=16)
def defaults_of(version: str, engine: str) -> Mapping[str, Any]:
    """Dotted key to default, of every key of the composed configuration; interpolations as they stand."""
    table = _table()
    at = index_of(version)
    rows = {**table["engines"]["fsdp"], **(table["engines"][engine] if engine != "fsdp" else {})}
    return {key: default for key, ranges in rows.items() for first, last, default in ranges if first <= at <= last}
