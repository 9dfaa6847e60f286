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
FIRST_DOTTED = "0.10.2"
DOTTED = f">={FIRST_DOTTED}"
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

_RENAMED = """
    train.colocate_all=colocate_all_models algo.advantage.is_correction_threshold=vllm_is_truncated_threshold
    train.async_enable=async_train train.partial_rollout_enable=partial_rollout ckpt.save_hf=save_hf_ckpt
    ckpt.disable_ds=disable_ds_ckpt ckpt.max_num=max_ckpt_num ckpt.max_mem=max_ckpt_mem
    ckpt.load_enable=load_checkpoint ds.use_universal_ckpt=use_ds_universal_ckpt
    actor.gradient_checkpointing_enable=gradient_checkpointing
    actor.gradient_checkpointing_reentrant=gradient_checkpointing_use_reentrant ds.enable_sleep=deepspeed_enable_sleep
    train.dynamic_batch_enable=use_dynamic_batch ckpt.output_dir=save_path
    rollout.micro_batch_size=micro_rollout_batch_size train.micro_batch_size=micro_train_batch_size
    reward.normalize_enable=normalize_reward train.full_determinism_enable=full_determinism
    critic.freezing_steps=freezing_actor_steps algo.kl.init_coef=init_kl_coef actor.entropy_coef=entropy_loss_coef
    actor.adam.lr=actor_learning_rate actor.adam.weight_decay=l2 critic.adam.lr=critic_learning_rate
    algo.kl.use_loss=use_kl_loss algo.advantage.no_std_norm=no_advantage_std_norm
    ds.ring_attn_head_stride=ring_head_stride actor.model_name_or_path=pretrain
    reward.model_name_or_path=reward_pretrain reward.remote_url=remote_rm_url
    critic.model_name_or_path=critic_pretrain ref.offload=ref_reward_offload data.prompt_dataset=prompt_data
    data.prompt_probs=prompt_data_probs logger.wandb.key=use_wandb algo.dynamic_filtering_enable=dynamic_filtering
    algo.dynamic_filtering_range=dynamic_filtering_reward_range logger.tensorboard_dir=use_tensorboard
    algo.advantage.is_correction_enable=enable_vllm_is_correction
    algo.advantage.is_correction_type=vllm_is_correction_type
"""
_TABLE = shipped("batchbridge_openrlhf")["train_ppo_ray"]
RELEASES = tuple(_TABLE.releases)
"""The wheels that were read, oldest first."""


def _flat_names() -> Iterator[tuple[str, str]]:
    """Dotted names with their flat ones. A name that is not in `_RENAMED` ends with its flat one: `zero_stage` of
    `ds.zero_stage`, `eval_steps` of `eval.steps`; where two do, it was the first one's (the actor's)."""
    renamed = dict(pair.split("=") for pair in _RENAMED.split())
    yield from renamed.items()
    left = {name for name in _TABLE.settings if "." not in name} - set(renamed.values())
    for name, declared in _TABLE.settings.items():
        if "." not in name or name in renamed or RELEASES[declared[0][0]] != FIRST_DOTTED:
            continue
        parts = name.split(".")
        flat = next((end for at in range(len(parts)) if (end := "_".join(parts[at:])) in left), None)
        if flat is not None:
            left.remove(flat)
            yield name, flat


FLAT: Mapping[str, str] = dict(_flat_names())
"""Dotted name to the flat one of before 0.10.2, of an option that has both."""


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
