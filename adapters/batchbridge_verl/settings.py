"""verl's settings by version: every key of its composed configuration, and the kinds of those that matter here.

Keys and defaults stand in `defaults.json`, one row per key: [first version, last version, default], both by index into
its `versions`; engines other than FSDP have the rows that differ. They are those of the wheels' own composed YAML, so
that verl need not be installed. `SETTINGS` lists what is read, with its kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from batchbridge.kit import omegaconf_kinds as kinds
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, or_null
from batchbridge.kit.omegaconf import Unresolved
from batchbridge.kit.omegaconf_kinds import FLOAT, INT, OPTIONAL_FLOAT, OPTIONAL_INT, OPTIONAL_TEXT, TEXT, TRUTH
from batchbridge.kit.shipped_settings import shipped
from batchbridge.kit.versions import holds as holds
from batchbridge.kit.versions import is_release

VERSIONS = ">=0.4.0"
"""Versions that are read; one newer than `NEWEST` as that. Rows are complete, wheel by wheel, for 0.4.0, 0.4.1, 0.5.0,
0.6.0, 0.6.1, 0.7.0, 0.7.1, 0.8.0, 0.9.0 and 0.9.1."""
OLDEST_ENFORCED = "0.6.1"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "0.9.1"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""
OF_COPIES = "<0.4.0"
"""Releases that are read for people's own copies of verl alone, see `before`."""
ENGINES = ("fsdp", "megatron", "veomni", "torchtitan")
ENGINE = "model_engine"
"""The key that chooses the engine from 0.7.1 on (`dp` is FSDP), Megatron from 0.8.0 on. Source: verl 0.7.1 to 0.9.1
trainer/config/model_engine."""

UNRECORDED = "(a path)"
"""The word in place of a default that is a machine's path."""

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
REFERENCE = "actor_rollout_ref.ref."
CRITIC = "critic."
SQUARES = f"{ACTOR}calculate_sum_pi_squared"
AGENT_WORKERS, AGENT_MANAGER = f"{ROLLOUT}agent.num_workers", f"{ROLLOUT}agent.agent_loop_manager_class"
"""The workers that generate, and share the completions of a rollout. Source: verl 0.5.0 to 0.9.1 AgentLoopManager."""
PREFIX_GROUPER = f"{ACTOR}use_prefix_grouper"
"""The key of shared prompts, in the workers of 0.7.1; see BB-VERL-091."""


def megatron_sizes(role: str) -> tuple[str, str, str]:
    """The keys of Megatron's tensor, pipeline and context parallel sizes, of the actor or the critic."""
    tensor, pipeline, context = (f"{role}megatron.{name}" for name in ("tensor_model", "pipeline_model", "context"))
    return f"{tensor}_parallel_size", f"{pipeline}_parallel_size", f"{context}_parallel_size"


PARALLEL: Mapping[str, tuple[str | None, str | None, str]] = {
    # engine: keys of tensor, pipeline, context (sequence) parallel size
    "fsdp": (None, None, f"{ACTOR}ulysses_sequence_parallel_size"),
    "megatron": megatron_sizes(ACTOR),
    "veomni": (None, None, f"{ACTOR}veomni.ulysses_parallel_size"),
    "torchtitan": (
        f"{ACTOR}torchtitan.tensor_parallel_size",
        f"{ACTOR}torchtitan.pipeline_parallel_size",
        f"{ACTOR}torchtitan.context_parallel_size",
    ),
}
"""Keys of tensor, pipeline and context parallel sizes, by engine. Source: verl 0.4.0 to 0.9.1 composed
configurations."""


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(Path(__file__).with_name("defaults.json").read_bytes())
    return table


def first_default(key: str) -> Any:
    """The default of a setting in the first release that ships it, of the first engine that has it."""
    return next(rows[key][0][2] for rows in _table()["engines"].values() if key in rows)


def _alike(group: str, kind: Kind, default: Any, *names: str) -> Iterator[Key]:
    """Settings of one group that differ in their names alone."""
    return (Key(f"{group}{name}", kind, default) for name in names)


def _shipped(group: str, *names: str) -> Iterator[Key]:
    """Settings of one group whose kind and default are those of the first release that ships them."""
    of = {bool: TRUTH, int: INT, float: FLOAT, str: TEXT}
    for name in names:
        default = first_default(f"{group}{name}")
        yield Key(f"{group}{name}", of[type(default)], default)


def _constant(value: Any) -> Any:
    if isinstance(value, float) and not value.is_integer():
        raise Unresolved(f"verl divides by {value}, and the constant of a loss is a whole number here")
    return kinds.OPTIONAL_WHOLE.convert(value)


_NORM = kinds.structured(FLOAT)  # torch's functions that clip gradients make a number of text
_CONSTANT = kinds.OPTIONAL_WHOLE._replace(convert=_constant, schema={"type": ["number", "null"]})
SHUFFLES = {True: "epoch_permutation", False: "none"}
SETTINGS = (
    # in the order in which they are written
    *_shipped("trainer.", "nnodes", "n_gpus_per_node"),
    *_shipped("", *(key for keys in PARALLEL.values() for key in keys if key is not None)),
    *_shipped("actor_rollout_ref.", "model.use_remove_padding", "rollout.name", "rollout.tensor_model_parallel_size"),
    Key(f"{ROLLOUT}n", INT, 1, "rollout.completions_per_prompt"),
    Key("data.train_batch_size", INT, 1024, "rollout.prompts_per_rollout"),
    *_shipped("", f"{ACTOR}ppo_mini_batch_size", "trainer.v1.trainer_mode"),
    Key("trainer.v1.sampler.max_off_policy_threshold", OPTIONAL_INT),
    Key(f"{ACTOR}ppo_epochs", INT, 1, "optimizer_step.passes_per_rollout"),
    *_shipped(ACTOR, "shuffle", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
    Key(f"{ROLLOUT}log_prob_max_token_len_per_gpu", INT, 16384),
    Key(f"{ACTOR}ppo_micro_batch_size_per_gpu", OPTIONAL_INT),
    *_alike("", OPTIONAL_INT, None, *(f"{group}log_prob_micro_batch_size_per_gpu" for group in (ROLLOUT, REFERENCE))),
    Key("data.gen_batch_size", OPTIONAL_INT),
    *_shipped("algorithm.filter_groups.", "enable"),
    Key("algorithm.filter_groups.metric", OPTIONAL_TEXT),
    Key("data.shuffle", TRUTH, True, "order.prompt_shuffle", SHUFFLES),
    Key("data.seed", OPTIONAL_INT, 1),  # verl 0.4.0 to 0.6.0 main_ppo.create_rl_sampler: data_config.get("seed", 1)
    Key("trainer.use_v1", TRUTH, False),
    Key("trainer.use_legacy_worker_impl", TEXT, "enable"),
    Key("trainer.total_training_steps", kinds.OPTIONAL_WHOLE, None, "horizon.rollouts"),
    Key("trainer.total_epochs", kinds.WHOLE, 30),
    *_shipped(ACTOR, "loss_agg_mode"),
    Key(f"{ACTOR}loss_scale_factor", _CONSTANT),
    *_shipped("algorithm.", "adv_estimator", "norm_adv_by_std_in_grpo"),
    *_shipped("", SQUARES, "algorithm.gamma", "algorithm.lam"),
    Key(f"{CRITIC}enable", kinds.OPTIONAL_TRUTH),
    Key(f"{CRITIC}ppo_mini_batch_size", INT, 256),
    Key(f"{CRITIC}ppo_epochs", INT, 1),
    *_alike(CRITIC, TRUTH, False, "shuffle", "use_dynamic_bsz"),
    *_shipped(CRITIC, "ppo_max_token_len_per_gpu"),
    Key(f"{CRITIC}ppo_micro_batch_size_per_gpu", OPTIONAL_INT),
    Key(f"{CRITIC}loss_agg_mode", TEXT, "token-mean"),
    Key(f"{CRITIC}loss_scale_factor", _CONSTANT),
    *_shipped(CRITIC, "cliprange_value", "optim.lr"),
    *_alike(CRITIC, _NORM, 1.0, "grad_clip", "optim.clip_grad"),
    Key("trainer.critic_warmup", kinds.WHOLE, 0),
    *_shipped(ACTOR, "policy_loss.loss_mode"),
    *_alike(f"{ACTOR}clip_ratio_", OPTIONAL_FLOAT, 0.2, "low", "high"),
    *_shipped("", f"{ACTOR}clip_ratio_c", "distillation.enabled"),
    *_shipped("distillation.distillation_loss.", "loss_mode", "use_task_rewards", "use_policy_gradient"),
    *_shipped("distillation.distillation_loss.", "policy_loss_mode", "clip_ratio_low", "clip_ratio_high"),
    *_shipped("algorithm.rollout_correction.", "bypass_mode"),
    *_alike("algorithm.rollout_correction.", OPTIONAL_TEXT, None, "loss_type", "rollout_is"),
    Key("algorithm.rollout_correction.rollout_is_threshold", kinds.ANY),
    Key("algorithm.rollout_correction.rollout_rs", OPTIONAL_TEXT),
    Key("algorithm.rollout_correction.rollout_rs_threshold", kinds.ANY),
    Key(f"{ACTOR}entropy_coeff", FLOAT, 0.0, "objective.entropy_coefficient"),
    *_shipped("", f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward"),
    *_shipped("algorithm.", "kl_ctrl.kl_coef", "kl_penalty"),
    *_shipped(ACTOR, "kl_loss_coef", "kl_loss_type", "optim.lr", "optim.weight_decay"),
    Key("data.max_prompt_length", INT, 512, "carried.max_prompt_tokens"),
    Key("data.max_response_length", INT, 512, "carried.max_completion_tokens"),
    Key(f"{ROLLOUT}temperature", FLOAT, 1.0, "carried.temperature"),
    Key(f"{ROLLOUT}top_p", FLOAT, 1.0, "carried.top_p"),
    Key(f"{ROLLOUT}top_k", INT, -1, "carried.top_k"),
    *_alike(ACTOR, _NORM, 1.0, "grad_clip", "optim.clip_grad"),
    *_shipped(ACTOR, "optim.optimizer_impl", "optim.optimizer"),
    Key(f"{ACTOR}optim.name", OPTIONAL_TEXT),
    *_alike(f"{ACTOR}optim.override_optimizer_config.", OPTIONAL_FLOAT, None, "adam_beta1", "adam_beta2"),
    Key(f"{ACTOR}optim.betas", kinds.LIST, [0.9, 0.999]),
    *_shipped(ACTOR, "optim.eps"),
    *_alike(f"{ACTOR}optim.override_optimizer_config.", OPTIONAL_FLOAT, None, "adam_eps", "eps"),
    *_alike(f"{ACTOR}optim.", OPTIONAL_TEXT, None, "warmup_style", "lr_decay_style", "decay_type", "lr_scheduler_type"),
    Key(f"{ACTOR}optim.min_lr_ratio", OPTIONAL_FLOAT),
    *_shipped(ACTOR, "optim.num_cycles", "optim.lr_warmup_steps_ratio"),
    Key(f"{ACTOR}optim.lr_warmup_steps", kinds.OPTIONAL_WHOLE, -1),
    *_shipped(ACTOR, "megatron.dtype"),
    *_alike(f"{ACTOR}fsdp_config.mixed_precision.", OPTIONAL_TEXT, None, "param_dtype", "reduce_dtype", "buffer_dtype"),
    # what is not written
    *_shipped("trainer.", "balance_batch", "save_freq"),
    Key(f"{ROLLOUT}logprobs_mode", OPTIONAL_TEXT, "raw_logprobs"),
    *_shipped("", f"{ROLLOUT}calculate_log_probs", "trainer.resume_mode"),
    *_shipped("trainer.v1.sampler.", "max_off_policy_strategy", "sync_refill_failed_groups"),
    *_shipped("data.", "dataloader_num_workers", "truncation", "filter_overlong_prompts", "train_max_samples"),
    *_shipped("", f"{ACTOR}strategy", PREFIX_GROUPER, "actor_rollout_ref.model.use_fused_kernels"),
    *_alike(ACTOR, OPTIONAL_INT, None, "ppo_micro_batch_size", "data_loader_seed"),
    *_shipped(ACTOR, "clip_ratio", "fsdp_config.ulysses_sequence_parallel_size", "fsdp_config.dtype"),
    *_shipped(ACTOR, "megatron.router_replay.mode"),
    Key(f"{ACTOR}optim.grad_clip", or_null(_NORM)),
    *_alike(f"{ACTOR}optim.override_optimizer_config.", OPTIONAL_FLOAT, None, "lr", "weight_decay"),
    Key(f"{ACTOR}optim.override_optimizer_config.betas", kinds.OPTIONAL_LIST),
    Key(f"{ROLLOUT}mode", TEXT, "async"),
    *_shipped("", AGENT_WORKERS),
    Key(AGENT_MANAGER, OPTIONAL_TEXT),
    *_shipped(ROLLOUT, "data_parallel_size", "pipeline_model_parallel_size", "expert_parallel_size"),
    *_shipped(ROLLOUT, "val_kwargs.do_sample", "multi_turn.enable"),
    *_alike(f"{ROLLOUT}multi_turn.", OPTIONAL_TEXT, None, "tool_config_path", "interaction_config_path"),
    Key(f"{ROLLOUT}log_prob_micro_batch_size", OPTIONAL_INT),
    Key(f"{ROLLOUT}log_prob_use_dynamic_bsz", TRUTH, False),
    Key(f"{REFERENCE}log_prob_micro_batch_size", OPTIONAL_INT),
    Key(f"{REFERENCE}ulysses_sequence_parallel_size", INT, 1),
    *_shipped("algorithm.", "kl_ctrl.type", "use_pf_ppo"),
    Key("algorithm.filter_groups.max_num_gen_batches", kinds.WHOLE, 0),
    *_shipped(CRITIC, "strategy"),
    Key(f"{CRITIC}ppo_micro_batch_size", OPTIONAL_INT),
    *_alike(f"{CRITIC}forward_micro_batch_size", OPTIONAL_INT, None, "", "_per_gpu"),
    *_shipped(CRITIC, "ulysses_sequence_parallel_size", "fsdp.ulysses_sequence_parallel_size"),
    *_shipped("", *megatron_sizes(CRITIC), f"{CRITIC}megatron.dtype"),
    Key(f"{CRITIC}optim.grad_clip", or_null(_NORM)),
    Key(f"{CRITIC}optim.override_optimizer_config.lr", OPTIONAL_FLOAT),
    *_alike(f"{CRITIC}optim.", OPTIONAL_TEXT, None, "warmup_style", "lr_scheduler_type"),
    *_shipped(CRITIC, "model.use_remove_padding"),
    Key("reward_model.enable", kinds.OPTIONAL_TRUTH, False),
    *_alike("reward_model.", TRUTH, False, "use_dynamic_bsz", "use_reward_loop"),
    *_alike("reward_model.micro_batch_size", OPTIONAL_INT, None, "", "_per_gpu"),
    Key("reward_model.enable_resource_pool", kinds.OPTIONAL_TRUTH, False),
    Key("reward_model.num_workers", OPTIONAL_INT, 1),
    *_shipped("reward.", "reward_model.enable", "reward_model.enable_resource_pool", "num_workers"),
)
"""Settings that are read, and what holds where a version's configuration has no such key (`default`). What one key
decides alone has its canonical field beside it."""
ALONE = tuple(row for row in SETTINGS if row.field)
BY_KEY: Mapping[str, Key] = {row.key: row for row in SETTINGS}

READ_THOUGH_NOT_SHIPPED: Mapping[str, tuple[str | None, str]] = {
    # key: (engine, None: any; versions)
    **dict.fromkeys(("data.seed", "data.gen_batch_size", "data.dataloader_num_workers"), (None, "")),
    AGENT_MANAGER: (None, ">=0.7.0"),
    f"{ACTOR}optim.betas": ("fsdp", ""),
    **{f"{role}optim.grad_clip": (None, ">=0.6.0") for role in (ACTOR, CRITIC)},
    **{f"{ACTOR}fsdp_config.mixed_precision.{part}_dtype": ("fsdp", "") for part in ("param", "reduce", "buffer")},
}
"""Keys that are read where the composed configuration has none, and that take a `+` on a command line. Source: verl
0.4.0 to 0.9.1 ray_trainer.py and main_ppo.create_rl_sampler (`data_config.get`; 0.7.0 on `agent.get`); fsdp_workers.py
and workers/engine/fsdp (`optim_config.get("betas")`, `mixed_precision`); 0.6.0 on OptimizerConfig.grad_clip."""

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


def engines_of(version: str) -> tuple[str, ...]:
    """The engines that `version` has a composed configuration for, and that are read."""
    if holds(OF_COPIES, version):
        return ENGINES[:1]
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
    if holds(OF_COPIES, version):
        return {key: row[1] for key, row in shipped("batchbridge_verl")["ppo_trainer of copies"].of(version).items()}
    table = _table()
    at = index_of(version)
    rows = {**table["engines"]["fsdp"], **(table["engines"][engine] if engine != "fsdp" else {})}
    return {key: default for key, ranges in rows.items() for first, last, default in ranges if first <= at <= last}
