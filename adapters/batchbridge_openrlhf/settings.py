"""Options of `openrlhf.cli.train_ppo_ray` by version: every name that its parser knows, its kind and its default.

Knowledge only; a further version is further rows. Names were flat up to 0.10.1 and are dotted from 0.10.2 on, so an
option is known here by one `identity`: its dotted name, or the flat one where it never had another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from batchbridge.kit.records import dataclass
from batchbridge.kit.versions import holds as holds

VERSIONS = ">=0.8.0"
"""Versions that are read. Rows are complete for `RELEASES`; one newer than `NEWEST` is read as that."""
OLDEST_ENFORCED = "0.10.4"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "0.11.2"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""
RELEASES = (
    *("0.8.0", "0.8.0.post1", "0.8.1", "0.8.1.post1", "0.8.2", "0.8.3", "0.8.4", "0.8.5", "0.8.6", "0.8.7", "0.8.8"),
    *("0.8.9", "0.8.9.post1", "0.8.10", "0.8.11", "0.9.0", "0.9.1", "0.9.1.post1", "0.9.2", "0.9.3", "0.9.4", "0.9.5"),
    *("0.9.6", "0.9.7", "0.9.8", "0.9.9", "0.9.10", "0.10.0", "0.10.1", "0.10.1.post1", "0.10.1.post2", "0.10.2"),
    *("0.10.3", "0.10.4", "0.11.0", "0.11.1", "0.11.2"),
)
"""The wheels that were read, oldest first."""
DOTTED = ">=0.10.2"
"""Versions whose names are dotted. Source: openrlhf 0.10.1.post2 and 0.10.2, cli/train_ppo_ray.py."""
SOURCE = "openrlhf cli/train_ppo_ray.py, parser of each wheel: 0.8.0 to 0.8.11, 0.9.0 to 0.9.10, 0.10.0 to 0.10.4, "
SOURCE += "0.11.0 to 0.11.2, post releases included"

ROLLOUT, GROUP, FORWARD = "rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size"
GENERATION, FILTER = "rollout.vllm_generate_batch_size", "algo.dynamic_filtering_enable"
RANGE, CLIP_RANGE = "algo.dynamic_filtering_range", "reward.clip_range"
TRAIN, MICRO, PASSES, EPISODES = "train.batch_size", "train.micro_batch_size", "train.max_epochs", "train.num_episodes"
ASYNC, DYNAMIC, BUDGET = "train.async_enable", "train.dynamic_batch_enable", "train.max_tokens_per_gpu"
NODES, DEVICES, ENGINES = "actor.num_nodes", "actor.num_gpus_per_node", "vllm.num_engines"
RING, TENSOR, PACKING, ZERO = "ds.ring_attn_size", "ds.tensor_parallel_size", "ds.packing_samples", "ds.zero_stage"
ESTIMATOR, FREEZING, SCHEDULE = "algo.advantage.estimator", "critic.freezing_steps", "actor.lr_scheduler"
LEVEL, MODE, GATING, THRESHOLD = (
    f"algo.advantage.is_correction_{part}" for part in ("level", "mode", "gating", "threshold")
)
CORRECTION, CORRECTION_TYPE = CORRECTION_BEFORE = (
    "algo.advantage.is_correction_enable",
    "algo.advantage.is_correction_type",
)
"""The options of the sampler's correction before 0.11.2."""


@dataclass(frozen=True)
class Option:
    """One option: `identity`, its `flat` name (None: dotted names only), `kind`, default, and the versions in which
    this row holds (empty: all of `VERSIONS`).

    kind: `int`, `float`, `str`, `flag` (no value: true), `flag_off` (no value: false), `pair` (two numbers), `texts`
    (two texts), `floats` (one number or more), `words` (texts). A default of None means: unset.
    """

    identity: str
    flat: str | None
    kind: str
    default: Any
    versions: str = ""
    choices: tuple[str, ...] = ()

    def name(self, version: str) -> str:
        """The option as `version` spells it, without the leading dashes."""
        return self.identity if self.flat is None or holds(DOTTED, version) else self.flat


@lru_cache(maxsize=64)
def options_of(version: str) -> Mapping[str, Option]:
    """Name in `version` to its row."""
    return {option.name(version): option for option in OPTIONS if holds(option.versions, version)}


def releases_with(name: str) -> list[str]:
    """The releases that spell an option so."""
    return [release for release in RELEASES if name in options_of(release)]


@lru_cache(maxsize=64)
def names_of(version: str) -> Mapping[str, str]:
    """Identity to its name in `version`."""
    return {option.identity: name for name, option in options_of(version).items()}


def defaults_of(version: str) -> dict[str, Any]:
    """Identity to its default in `version`; what the version does not know has the value of `ABSENT`, or None."""
    found = {option.identity: None for option in OPTIONS}
    found |= {identity: value for identity, (value, _) in ABSENT.items()}
    return found | {option.identity: option.default for option in options_of(version).values()}


@lru_cache(maxsize=1)
def spellings() -> Mapping[str, frozenset[str]]:
    """Every name of any version to the identities that it stood for."""
    found: dict[str, set[str]] = {}
    for option in OPTIONS:
        for name in {option.identity, option.flat} - {None}:
            found.setdefault(str(name), set()).add(option.identity)
    return {name: frozenset(identities) for name, identities in found.items()}


ABSENT: dict[str, tuple[Any, str]] = {
    "rollout.vllm_generate_batch_size": (None, "openrlhf 0.8.0: the loader takes rollout_batch_size prompts"),
    "algo.dynamic_filtering_enable": (False, "openrlhf 0.8.0: no filter"),
    "train.dynamic_batch_enable": (False, "openrlhf before 0.8.6: fixed micro-batches"),
    "train.async_queue_size": (1, "openrlhf before 0.9.1 PPOTrainerAsync: OPENRLHF_ASYNC_QUEUE_SIZE, 1 where unset"),
    "train.partial_rollout_enable": (False, "openrlhf before 0.9.7: generation is not interrupted"),
    "actor.policy_loss_type": ("ppo", "openrlhf before 0.8.8 PolicyLoss"),
    "actor.loss_agg_mode": ("token-mean", "openrlhf before 0.11.2 PolicyLoss(token_level_loss=True)"),
    "actor.lr_scheduler": ("cosine_with_min_lr", "openrlhf before 0.8.5 PolicyModelActor.init_model_from_pretrained"),
    "actor.min_lr_ratio": (0.1, "openrlhf before 0.10.2 PolicyModelActor.init_model_from_pretrained"),
    "actor.adam.eps": (1e-08, "openrlhf before 0.10.2 DeepspeedStrategy.create_optimizer: FusedAdam's own default"),
    "actor.optim": ("adam", "openrlhf before 0.10.2 DeepspeedStrategy.create_optimizer: FusedAdam"),
    "algo.kl.unbiased_gradient": (False, "openrlhf before 0.11.1 compute_approx_kl"),
    CORRECTION: (False, "openrlhf before 0.8.9 PolicyLoss"),
    CORRECTION_TYPE: ("tis", "openrlhf before 0.9.3 PolicyLoss"),
    "algo.advantage.is_correction_level": ("off", "openrlhf before 0.11.2 PolicyLoss"),
    "data.max_images_per_prompt": (0, "openrlhf before 0.10.0: text only"),
    "use_icepop": (False, "openrlhf 0.9.1 and 0.9.2 only"),
}
"""Values that versions without an option have in its place: identity -> value, source."""

_ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo")
_EXPERTS = ("eager", "batched_mm", "grouped_mm", "deepgemm")
_GATINGS = ("ratio", "binary_kl", "tv")
OPTIONS: tuple[Option, ...] = (
    Option("ref.num_nodes", "ref_num_nodes", "int", 1),
    Option("ref.num_gpus_per_node", "ref_num_gpus_per_node", "int", 8),
    Option("reward.num_nodes", "reward_num_nodes", "int", 1),
    Option("reward.num_gpus_per_node", "reward_num_gpus_per_node", "int", 8),
    Option("train.colocate_actor_ref", "colocate_actor_ref", "flag", False),
    Option("actor.num_nodes", "actor_num_nodes", "int", 1),
    Option("actor.num_gpus_per_node", "actor_num_gpus_per_node", "int", 8),
    Option("critic.num_nodes", "critic_num_nodes", "int", 1),
    Option("critic.num_gpus_per_node", "critic_num_gpus_per_node", "int", 8),
    Option("train.colocate_critic_reward", "colocate_critic_reward", "flag", False),
    Option("train.colocate_all", "colocate_all_models", "flag", False),
    Option("vllm.num_engines", "vllm_num_engines", "int", None),
    Option("vllm.tensor_parallel_size", "vllm_tensor_parallel_size", "int", 1),
    Option("vllm.sync_backend", "vllm_sync_backend", "str", "nccl"),
    Option("vllm.sync_with_ray", "vllm_sync_with_ray", "flag", False),
    Option("vllm.enable_prefix_caching", "enable_prefix_caching", "flag", False),
    Option("vllm.enforce_eager", "enforce_eager", "flag", False),
    Option("vllm.enable_sleep", "vllm_enable_sleep", "flag", False),
    Option("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization", "float", 0.95),
    Option("algo.advantage.is_correction_level", None, "str", "off", ">=0.11.2", choices=("off", "token", "seq")),
    Option("algo.advantage.is_correction_mode", None, "str", "mask", ">=0.11.2", choices=("mask", "clip")),
    Option("algo.advantage.is_correction_gating", None, "str", "ratio", ">=0.11.2", _GATINGS),
    Option(THRESHOLD, "vllm_is_truncated_threshold", "float", 2.0, ">=0.8.9,<0.9.1"),
    Option(THRESHOLD, "vllm_is_truncated_threshold", "pair", (0.5, 5.0), ">=0.9.1,<0.11.2"),
    Option(THRESHOLD, None, "floats", (0.5, 5.0), ">=0.11.2"),
    Option("train.async_enable", "async_train", "flag", False),
    Option("train.async_queue_size", "async_queue_size", "int", 1, ">=0.9.1"),
    Option("train.partial_rollout_enable", "partial_rollout", "flag", False, ">=0.9.7"),
    Option("eval.steps", "eval_steps", "int", -1),
    Option("ckpt.save_steps", "save_steps", "int", -1),
    Option("logger.logging_steps", "logging_steps", "int", 1),
    Option("ckpt.path", "ckpt_path", "str", "./ckpt/checkpoints_ppo_ray"),
    Option("ckpt.save_hf", "save_hf_ckpt", "flag", False),
    Option("ckpt.disable_ds", "disable_ds_ckpt", "flag", False),
    Option("ckpt.max_num", "max_ckpt_num", "int", 3),
    Option("ckpt.max_mem", "max_ckpt_mem", "int", 100000000, "<0.9.9"),
    Option("ckpt.max_mem", "max_ckpt_mem", "float", math.inf, ">=0.9.9"),
    Option("ckpt.load_enable", "load_checkpoint", "flag", False),
    Option("ckpt.best_metric_key", "best_metric_key", "str", "", ">=0.9.9"),
    Option("ds.use_universal_ckpt", "use_ds_universal_ckpt", "flag", False),
    Option("local_rank", "local_rank", "int", -1),
    Option("ds.zero_stage", "zero_stage", "int", 2),
    Option("actor.gradient_checkpointing_enable", "gradient_checkpointing", "flag", False),
    Option("ds.deepcompile", "deepcompile", "flag", False),
    Option("ds.param_dtype", "param_dtype", "str", "bf16", ">=0.9.2", choices=("bf16", "fp16")),
    Option("train.enable_ema", "enable_ema", "flag", False),
    Option("train.ema_beta", "ema_beta", "float", 0.992),
    Option("ds.zpg", "zpg", "int", 1),
    Option("ds.adam_offload", "adam_offload", "flag", False),
    Option("ds.attn_implementation", "attn_implementation", "str", "flash_attention_2", ">=0.8.10"),
    Option("ds.experts_implementation", None, "str", None, ">=0.10.2", _EXPERTS),
    Option("ds.use_liger_kernel", "use_liger_kernel", "flag", False),
    Option("ds.grad_accum_dtype", "grad_accum_dtype", "str", None),
    Option("ds.overlap_comm", "overlap_comm", "flag", False),
    Option("actor.gradient_checkpointing_reentrant", "gradient_checkpointing_use_reentrant", "flag", False),
    Option("data.disable_fast_tokenizer", "disable_fast_tokenizer", "flag", False),
    Option("data.dataloader_num_workers", "dataloader_num_workers", "int", 0, ">=0.9.10"),
    Option("ds.enable_sleep", "deepspeed_enable_sleep", "flag", False),
    Option("ds.tensor_parallel_size", "ds_tensor_parallel_size", "int", 1),
    Option("ds.packing_samples", "packing_samples", "flag", False),
    Option("train.dynamic_batch_enable", "use_dynamic_batch", "flag", False, ">=0.8.6"),
    Option("rollout.max_tokens_per_gpu", "rollout_max_tokens_per_gpu", "int", None, ">=0.8.6"),
    Option("train.max_tokens_per_gpu", "train_max_tokens_per_gpu", "int", 16192, ">=0.8.6"),
    Option("ds.load_in_4bit", "load_in_4bit", "flag", False),
    Option("ds.lora.rank", "lora_rank", "int", 0),
    Option("ds.lora.alpha", "lora_alpha", "int", 16),
    Option("ds.lora.target_modules", "target_modules", "words", "all-linear"),
    Option("ds.lora.dropout", "lora_dropout", "float", 0.0),
    Option("ckpt.output_dir", "save_path", "str", "./ckpt"),
    Option("train.num_episodes", "num_episodes", "int", 1),
    Option("rollout.batch_size", "rollout_batch_size", "int", 1024),
    Option("rollout.vllm_generate_batch_size", "vllm_generate_batch_size", "int", None, ">=0.8.1"),
    Option("rollout.micro_batch_size", "micro_rollout_batch_size", "int", 8, "<0.10.0"),
    Option("rollout.micro_batch_size", "micro_rollout_batch_size", "int", 1, ">=0.10.0"),
    Option("train.max_epochs", "max_epochs", "int", 1),
    Option("data.max_len", "max_len", "int", None, "<0.9.8"),
    Option("data.max_len", "max_len", "int", 2048, ">=0.9.8"),
    Option("rollout.max_new_tokens", "max_new_tokens", "int", None, ">=0.9.8"),
    Option("data.max_samples", "max_samples", "int", 100000000),
    Option("actor.eps_clip", "eps_clip", "float", 0.2),
    Option("actor.eps_clip_low_high", "eps_clip_low_high", "pair", None, ">=0.8.2"),
    Option("actor.dual_clip", "dual_clip", "float", None, ">=0.8.6"),
    Option("critic.value_clip", "value_clip", "float", 0.2, "<0.8.2"),
    Option("critic.value_clip", "value_clip", "float", 0.5, ">=0.8.2"),
    Option("algo.advantage.lambd", "lambd", "float", 1.0),
    Option("algo.advantage.gamma", "gamma", "float", 1.0),
    Option("train.micro_batch_size", "micro_train_batch_size", "int", 4, "<0.10.0"),
    Option("train.micro_batch_size", "micro_train_batch_size", "int", 1, ">=0.10.0"),
    Option("train.batch_size", "train_batch_size", "int", 128),
    Option("reward.normalize_enable", "normalize_reward", "flag", False),
    Option("rollout.top_p", "top_p", "float", 1.0),
    Option("rollout.temperature", "temperature", "float", 1.0),
    Option("train.seed", "seed", "int", 42),
    Option("train.full_determinism_enable", "full_determinism", "flag", False),
    Option("critic.freezing_steps", "freezing_actor_steps", "int", -1),
    Option("rollout.n_samples_per_prompt", "n_samples_per_prompt", "int", 1),
    Option("critic.save_value_network", "save_value_network", "flag", False),
    Option("algo.kl.target", "kl_target", "float", None),
    Option("algo.kl.horizon", "kl_horizon", "int", 10000),
    Option("algo.kl.init_coef", "init_kl_coef", "float", 0.01),
    Option("actor.policy_loss_type", "policy_loss_type", "str", "ppo", ">=0.8.8", choices=("ppo", "gspo")),
    Option("actor.loss_agg_mode", None, "str", "token-mean", ">=0.11.2", choices=("token-mean", "seq-mean-token-mean")),
    Option("algo.kl.estimator", "kl_estimator", "str", "k1", choices=("k1", "k2", "k3")),
    Option("algo.kl.unbiased_gradient", None, "flag", False, ">=0.11.1"),
    Option("actor.aux_loss_coef", "aux_loss_coef", "float", 0.0),
    Option("actor.entropy_coef", "entropy_loss_coef", "float", 0.0, "<0.8.3"),
    Option("actor.entropy_coef", "entropy_loss_coef", "float", None, ">=0.8.3"),
    Option("reward.clip_range", "reward_clip_range", "pair", (-10.0, 10.0)),
    Option("actor.optim", None, "str", "adam", ">=0.10.2", choices=("adam", "muon")),
    Option("actor.muon.lr", None, "float", 0.02, ">=0.10.2"),
    Option("actor.muon.momentum", None, "float", 0.95, ">=0.10.2"),
    Option("actor.muon.ns_steps", None, "int", 5, ">=0.10.2"),
    Option("actor.muon.nesterov", None, "flag", True, ">=0.10.2"),
    Option("actor.muon.no_nesterov", None, "flag_off", True, ">=0.10.2"),
    Option("actor.adam.lr", "actor_learning_rate", "float", 1e-06),
    Option("actor.adam.betas", "adam_betas", "pair", (0.9, 0.95)),
    Option("actor.adam.eps", None, "float", 1e-08, ">=0.10.2"),
    Option("actor.adam.weight_decay", "l2", "float", 0.0),
    Option("actor.lr_scheduler", "lr_scheduler", "str", "cosine_with_min_lr", ">=0.8.5"),
    Option("actor.lr_warmup_ratio", "lr_warmup_ratio", "float", 0.03),
    Option("actor.min_lr_ratio", None, "float", 0.1, ">=0.10.2"),
    Option("actor.max_norm", "max_norm", "float", 1.0),
    Option("critic.optim", None, "str", "adam", ">=0.10.2", choices=("adam", "muon")),
    Option("critic.muon.lr", None, "float", 0.02, ">=0.10.2"),
    Option("critic.muon.momentum", None, "float", 0.95, ">=0.10.2"),
    Option("critic.muon.ns_steps", None, "int", 5, ">=0.10.2"),
    Option("critic.muon.nesterov", None, "flag", True, ">=0.10.2"),
    Option("critic.muon.no_nesterov", None, "flag_off", True, ">=0.10.2"),
    Option("critic.adam.lr", "critic_learning_rate", "float", 9e-06),
    Option("critic.adam.betas", None, "pair", (0.9, 0.95), ">=0.10.2"),
    Option("critic.adam.eps", None, "float", 1e-08, ">=0.10.2"),
    Option("critic.adam.weight_decay", None, "float", 0.0, ">=0.10.2"),
    Option("critic.lr_scheduler", None, "str", "cosine_with_min_lr", ">=0.10.2"),
    Option("critic.lr_warmup_ratio", None, "float", 0.03, ">=0.10.2"),
    Option("critic.min_lr_ratio", None, "float", 0.1, ">=0.10.2"),
    Option("critic.max_norm", None, "float", 1.0, ">=0.10.2"),
    Option("algo.advantage.estimator", "advantage_estimator", "str", "gae", "<0.11.2", _ESTIMATORS),
    Option("algo.advantage.estimator", None, "str", "gae", ">=0.11.2", (*_ESTIMATORS, "flash_reinforce")),
    Option("algo.kl.use_loss", "use_kl_loss", "flag", False),
    Option("algo.advantage.no_std_norm", "no_advantage_std_norm", "flag", False),
    Option("reward.overlong_buffer_len", "overlong_buffer_len", "float", None, ">=0.8.7"),
    Option("reward.overlong_penalty_factor", "overlong_penalty_factor", "float", 1.0, ">=0.8.7"),
    Option("reward.stop_properly_penalty_coef", "stop_properly_penalty_coef", "float", None, ">=0.9.2"),
    Option("ds.ring_attn_size", "ring_attn_size", "int", 1),
    Option("ds.ring_attn_head_stride", "ring_head_stride", "int", 1),
    Option("actor.model_name_or_path", "pretrain", "str", None),
    Option("reward.model_name_or_path", "reward_pretrain", "str", None),
    Option("reward.remote_url", "remote_rm_url", "str", None),
    Option("critic.model_name_or_path", "critic_pretrain", "str", None),
    Option("ds.value_head_prefix", "value_head_prefix", "str", "score"),
    Option("ref.offload", "ref_reward_offload", "flag", False),
    Option("reward.offload", None, "flag", False, ">=0.10.2"),
    Option("train.agent_func_path", "agent_func_path", "str", None),
    Option("data.prompt_dataset", "prompt_data", "str", None),
    Option("data.prompt_probs", "prompt_data_probs", "str", None),
    Option("data.prompt_split", "prompt_split", "str", "train"),
    Option("eval.dataset", "eval_dataset", "str", None),
    Option("eval.split", "eval_split", "str", "train"),
    Option("eval.temperature", "eval_temperature", "float", 0.6),
    Option("eval.n_samples_per_prompt", "eval_n_samples_per_prompt", "int", 4),
    Option("data.input_key", "input_key", "str", "input"),
    Option("data.label_key", "label_key", "str", None),
    Option("data.input_template", "input_template", "str", None),
    Option("data.apply_chat_template", "apply_chat_template", "flag", False),
    Option("logger.wandb.key", "use_wandb", "str", None),
    Option("logger.wandb.org", "wandb_org", "str", None),
    Option("logger.wandb.group", "wandb_group", "str", None),
    Option("logger.wandb.project", "wandb_project", "str", "openrlhf_train_ppo"),
    Option("logger.wandb.run_name", "wandb_run_name", "str", None),
    Option("algo.dynamic_filtering_enable", "dynamic_filtering", "flag", False, ">=0.8.1"),
    Option(RANGE, "dynamic_filtering_reward_range", "texts", (0.0, 1.0), ">=0.8.1,<0.8.1.post1"),
    Option(RANGE, "dynamic_filtering_reward_range", "pair", (0.0, 1.0), ">=0.8.1.post1"),
    Option("data.image_key", "image_key", "str", "images", ">=0.10.0"),
    Option("data.max_images_per_prompt", "max_images_per_prompt", "int", 0, ">=0.10.0"),
    Option("actor.freeze_visual_encoder", "freeze_visual_encoder", "flag", False, ">=0.10.0"),
    Option("logger.tensorboard_dir", "use_tensorboard", "str", None),
    Option("use_ms", "use_ms", "flag", False),
    Option("bf16", "bf16", "flag", False, "<0.9.2"),
    Option("actor_init_on_gpu", "actor_init_on_gpu", "flag", False, "<0.10.2"),
    Option("flash_attn", "flash_attn", "flag", False, "<0.8.10"),
    Option("prompt_max_len", "prompt_max_len", "int", 1024, "<0.9.8"),
    Option("generate_max_len", "generate_max_len", "int", 1024, "<0.9.8"),
    Option("ptx_coef", "ptx_coef", "float", 0.05, "<0.10.2"),
    Option("perf", "perf", "flag", False, "<0.10.2"),
    Option(CORRECTION, "enable_vllm_is_correction", "flag", False, ">=0.8.9,<0.11.2"),
    Option("use_icepop", "use_icepop", "flag", False, ">=0.9.1,<0.9.3"),
    Option(CORRECTION_TYPE, "vllm_is_correction_type", "str", "tis", ">=0.9.3,<0.9.4", ("tis", "icepop", "mis")),
    Option(
        CORRECTION_TYPE, "vllm_is_correction_type", "str", "tis", ">=0.9.4,<0.11.2", ("tis", "icepop", "seq-mask-tis")
    ),
)
"""Source of every row: `SOURCE`. The default run name, which holds the time of day, is left unset here."""


_IDLE = ("logger.", "ckpt.", "eval.", "local_rank", "ds.zpg", "vllm.sync_backend", "vllm.gpu_memory_utilization")
"""Beginnings of options that decide nothing here: one that cannot be read leaves the rest readable."""


def is_idle(identity: str) -> bool:
    """Whether neither the meaning nor a rule depends on the number that this option has."""
    return identity.startswith(_IDLE)
