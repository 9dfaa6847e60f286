"""Options of `openrlhf.cli.train_ppo_ray` by version: every name that its parser knows, its kind and its default.

These stand in `declared.json`, which tests/upstream/declare.py writes from the parser of each wheel. Names were flat up
to 0.10.1 and are dotted from 0.10.2 on, so an option is known here by one `identity`: its dotted name, or the flat one
where it never had another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from batchbridge.kit.records import dataclass
from batchbridge.kit.shipped_settings import OPEN, shipped
from batchbridge.kit.versions import holds as holds

VERSIONS = ">=0.8.0"
"""Versions that are read. Rows are complete for `RELEASES`; one newer than `NEWEST` is read as that."""
OLDEST_ENFORCED = "0.10.4"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "0.11.2"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""
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
    if version in OLD_RELEASES:
        return _old_options(version)
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
    if version in OLD_RELEASES:
        found |= {identity: value for identity, (value, _) in ABSENT_IN_COPIES.items()}
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

ABSENT_IN_COPIES: dict[str, tuple[Any, str]] = {
    ASYNC: (False, "openrlhf before 0.8.0: synchronous"),
    TENSOR: (1, "openrlhf before 0.7.4 DeepspeedStrategy: no tensor parallelism"),
    RING: (1, "openrlhf before 0.6.0 train_ppo_ray: no ring attention"),
    "algo.kl.use_loss": (False, "openrlhf before 0.6.0: the KL is in the reward"),
    "algo.kl.estimator": ("k1", "openrlhf before 0.6.0.post1 compute_approx_kl, unless use_kl_estimator_k3 is on"),
    "algo.advantage.no_std_norm": (False, "openrlhf before 0.6.4 NaiveReplayBuffer.normalize"),
    "actor.lr_warmup_ratio": (0.03, "openrlhf before 0.5.5 ActorModelRayActor.init_model_from_pretrained"),
    "use_kl_estimator_k3": (False, "openrlhf 0.5.2 to 0.6.0 only"),
}
"""Values that releases before 0.8.0 without an option have in its place, beside `ABSENT`."""

_FLAT = """
    ref.num_nodes=ref_num_nodes ref.num_gpus_per_node=ref_num_gpus_per_node reward.num_nodes=reward_num_nodes
    reward.num_gpus_per_node=reward_num_gpus_per_node train.colocate_actor_ref=colocate_actor_ref
    actor.num_nodes=actor_num_nodes actor.num_gpus_per_node=actor_num_gpus_per_node
    critic.num_nodes=critic_num_nodes critic.num_gpus_per_node=critic_num_gpus_per_node
    train.colocate_critic_reward=colocate_critic_reward train.colocate_all=colocate_all_models
    vllm.num_engines=vllm_num_engines vllm.tensor_parallel_size=vllm_tensor_parallel_size
    vllm.sync_backend=vllm_sync_backend vllm.sync_with_ray=vllm_sync_with_ray
    vllm.enable_prefix_caching=enable_prefix_caching vllm.enforce_eager=enforce_eager
    vllm.enable_sleep=vllm_enable_sleep vllm.gpu_memory_utilization=vllm_gpu_memory_utilization
    algo.advantage.is_correction_threshold=vllm_is_truncated_threshold train.async_enable=async_train
    train.async_queue_size=async_queue_size train.partial_rollout_enable=partial_rollout eval.steps=eval_steps
    ckpt.save_steps=save_steps logger.logging_steps=logging_steps ckpt.path=ckpt_path ckpt.save_hf=save_hf_ckpt
    ckpt.disable_ds=disable_ds_ckpt ckpt.max_num=max_ckpt_num ckpt.max_mem=max_ckpt_mem
    ckpt.load_enable=load_checkpoint ckpt.best_metric_key=best_metric_key
    ds.use_universal_ckpt=use_ds_universal_ckpt ds.zero_stage=zero_stage
    actor.gradient_checkpointing_enable=gradient_checkpointing ds.deepcompile=deepcompile ds.param_dtype=param_dtype
    train.enable_ema=enable_ema train.ema_beta=ema_beta ds.zpg=zpg ds.adam_offload=adam_offload
    ds.attn_implementation=attn_implementation ds.use_liger_kernel=use_liger_kernel
    ds.grad_accum_dtype=grad_accum_dtype ds.overlap_comm=overlap_comm
    actor.gradient_checkpointing_reentrant=gradient_checkpointing_use_reentrant
    data.disable_fast_tokenizer=disable_fast_tokenizer data.dataloader_num_workers=dataloader_num_workers
    ds.enable_sleep=deepspeed_enable_sleep ds.tensor_parallel_size=ds_tensor_parallel_size
    ds.packing_samples=packing_samples train.dynamic_batch_enable=use_dynamic_batch
    rollout.max_tokens_per_gpu=rollout_max_tokens_per_gpu train.max_tokens_per_gpu=train_max_tokens_per_gpu
    ds.load_in_4bit=load_in_4bit ds.lora.rank=lora_rank ds.lora.alpha=lora_alpha
    ds.lora.target_modules=target_modules ds.lora.dropout=lora_dropout ckpt.output_dir=save_path
    train.num_episodes=num_episodes rollout.batch_size=rollout_batch_size
    rollout.vllm_generate_batch_size=vllm_generate_batch_size rollout.micro_batch_size=micro_rollout_batch_size
    train.max_epochs=max_epochs data.max_len=max_len rollout.max_new_tokens=max_new_tokens
    data.max_samples=max_samples actor.eps_clip=eps_clip actor.eps_clip_low_high=eps_clip_low_high
    actor.dual_clip=dual_clip critic.value_clip=value_clip algo.advantage.lambd=lambd algo.advantage.gamma=gamma
    train.micro_batch_size=micro_train_batch_size train.batch_size=train_batch_size
    reward.normalize_enable=normalize_reward rollout.top_p=top_p rollout.temperature=temperature train.seed=seed
    train.full_determinism_enable=full_determinism critic.freezing_steps=freezing_actor_steps
    rollout.n_samples_per_prompt=n_samples_per_prompt critic.save_value_network=save_value_network
    algo.kl.target=kl_target algo.kl.horizon=kl_horizon algo.kl.init_coef=init_kl_coef
    actor.policy_loss_type=policy_loss_type algo.kl.estimator=kl_estimator actor.aux_loss_coef=aux_loss_coef
    actor.entropy_coef=entropy_loss_coef reward.clip_range=reward_clip_range actor.adam.lr=actor_learning_rate
    actor.adam.betas=adam_betas actor.adam.weight_decay=l2 actor.lr_scheduler=lr_scheduler
    actor.lr_warmup_ratio=lr_warmup_ratio actor.max_norm=max_norm critic.adam.lr=critic_learning_rate
    algo.advantage.estimator=advantage_estimator algo.kl.use_loss=use_kl_loss
    algo.advantage.no_std_norm=no_advantage_std_norm reward.overlong_buffer_len=overlong_buffer_len
    reward.overlong_penalty_factor=overlong_penalty_factor
    reward.stop_properly_penalty_coef=stop_properly_penalty_coef ds.ring_attn_size=ring_attn_size
    ds.ring_attn_head_stride=ring_head_stride actor.model_name_or_path=pretrain
    reward.model_name_or_path=reward_pretrain reward.remote_url=remote_rm_url
    critic.model_name_or_path=critic_pretrain ds.value_head_prefix=value_head_prefix ref.offload=ref_reward_offload
    train.agent_func_path=agent_func_path data.prompt_dataset=prompt_data data.prompt_probs=prompt_data_probs
    data.prompt_split=prompt_split eval.dataset=eval_dataset eval.split=eval_split eval.temperature=eval_temperature
    eval.n_samples_per_prompt=eval_n_samples_per_prompt data.input_key=input_key data.label_key=label_key
    data.input_template=input_template data.apply_chat_template=apply_chat_template logger.wandb.key=use_wandb
    logger.wandb.org=wandb_org logger.wandb.group=wandb_group logger.wandb.project=wandb_project
    logger.wandb.run_name=wandb_run_name algo.dynamic_filtering_enable=dynamic_filtering
    algo.dynamic_filtering_range=dynamic_filtering_reward_range data.image_key=image_key
    data.max_images_per_prompt=max_images_per_prompt actor.freeze_visual_encoder=freeze_visual_encoder
    logger.tensorboard_dir=use_tensorboard algo.advantage.is_correction_enable=enable_vllm_is_correction
    algo.advantage.is_correction_type=vllm_is_correction_type
"""
FLAT: Mapping[str, str] = dict(pair.split("=") for pair in _FLAT.split())
"""Dotted name to the flat one of before 0.10.2, of an option that has both."""


_TABLE = shipped("batchbridge_openrlhf")["train_ppo_ray"]
RELEASES = tuple(_TABLE.releases)
"""The wheels that were read, oldest first."""


def _options() -> Iterator[Option]:
    dotted = {flat: identity for identity, flat in FLAT.items()}
    for name, declared in _TABLE.settings.items():
        flat = None if "." in name else name
        for first, last, *row in declared:
            yield _option(dotted.get(name, name), flat, row, _TABLE.range_of(first, last))


def _option(identity: str, flat: str | None, row: Sequence[Any], versions: str) -> Option:
    kind, default, *choices = row
    default = None if default == OPEN else tuple(default) if isinstance(default, list) else default
    return Option(identity, flat, kind, default, versions, tuple(choices[0]) if choices else ())


OPTIONS = tuple(_options())
"""Every option of every release. The default run name, which holds the time of day, is left unset here."""
_OF_COPIES = shipped("batchbridge_openrlhf")["train_ppo_ray of copies"]
OLD_RELEASES = tuple(_OF_COPIES.releases)
"""Releases before 0.8.0, oldest first, which are read for people's own copies alone: those whose deciding functions are
not those of the one before. Source: the wheels of 0.5.0 to 0.7.5."""


def _old_options(version: str) -> dict[str, Option]:
    dotted = {flat: identity for identity, flat in FLAT.items()}
    rows = _OF_COPIES.of(version).items()
    return {name: _option(dotted.get(name, name), name, row, "") for name, row in rows}


_IDLE = ("logger.", "ckpt.", "eval.", "local_rank", "ds.zpg", "vllm.sync_backend", "vllm.gpu_memory_utilization")
"""Beginnings of options that decide nothing here: one that cannot be read leaves the rest readable."""


def is_idle(identity: str) -> bool:
    """Whether neither the meaning nor a rule depends on the number that this option has."""
    return identity.startswith(_IDLE)
