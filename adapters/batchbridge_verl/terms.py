"""verl's own names in canonical words: aggregations, losses, advantages, KL, optimizers, schedules, precisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from batchbridge_verl.settings import ACTOR, holds

TORCH_SEED = 67280421310721
"""The seed of a new `torch.Generator()`, which `data.seed: null` leaves. Source: torch 2.13.0 c10 default_rng_seed_val;
verl 0.6.1 to 0.9.1 create_rl_sampler."""

AGGREGATIONS = {
    "token-mean": "token_mean",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "sequence_sum_over_constant",
}
"""Aggregations by `loss_agg_mode`. Source: verl 0.4.0 to 0.9.1 core_algos.agg_loss."""
AGGREGATION_VERSIONS: Mapping[str, str] = {"token-sum": ">=0.9.0"}
"""Versions of the values of `loss_agg_mode` that not all have. Source: verl 0.8.0, 0.9.0 core_algos.agg_loss."""


def aggregations(version: str) -> list[str]:
    """The values of `loss_agg_mode` that a version has."""
    return [name for name in AGGREGATIONS if holds(AGGREGATION_VERSIONS.get(name, ""), version)]


class LossMode(NamedTuple):
    """One `policy_loss.loss_mode`: the surrogate, what its ratio is taken over, whether it clips and clips twice, an
    aggregation that it insists on (canonical) in `insisting` versions, and its versions."""

    name: str
    surrogate: str
    ratio_level: str | None
    clips: bool
    dual_clip: bool = False
    aggregation: str | None = None
    insisting: str = ""
    versions: str = ""

    def insists_on(self, version: str) -> str | None:
        """The aggregation that is taken whatever loss_agg_mode says; None where loss_agg_mode is read."""
        return self.aggregation if holds(self.insisting, version) else None


LOSS_MODES = {
    mode.name: mode
    for mode in (
        LossMode("vanilla", "ppo", "token", True, dual_clip=True),
        LossMode("gspo", "ppo", "sequence", True, aggregation="sequence_mean", insisting="<0.9.1", versions=">=0.6.0"),
        LossMode("cispo", "cispo", "token", True, versions=">=0.7.0"),
        LossMode("sapo", "sapo", "token", False, aggregation="sequence_mean", versions=">=0.7.0"),
        LossMode("geo_mean", "gmpo", "sequence", True, aggregation="sequence_mean", versions=">=0.6.0"),
        LossMode("gpg", "gpg", None, False, versions=">=0.5.0"),
        LossMode("clip_cov", "clip_cov", "token", True, versions=">=0.4.1"),
        LossMode("kl_cov", "kl_cov", "token", False, versions=">=0.4.1"),
        LossMode("dppo_tv", "dppo_tv", "token", True, versions=">=0.7.1"),
        LossMode("dppo_kl", "dppo_kl", "token", True, versions=">=0.7.1"),
        LossMode("dro", "dro", "token", False, versions=">=0.9.0"),
    )
}
"""Policy losses by name. Source: verl 0.4.1 to 0.9.1 core_algos.register_policy_loss. bypass_mode belongs to
rollout_correction. gspo is PPO's surrogate with the ratio of whole sequences."""


def aggregations_of(mode: LossMode, version: str) -> tuple[str, ...]:
    """The aggregations (canonical) that a loss mode can take in `version`."""
    if (insisted := mode.insists_on(version)) is not None:
        return (insisted,)
    return tuple(AGGREGATIONS[name] for name in aggregations(version))


class VerlEstimator(NamedTuple):
    """One `algorithm.adv_estimator`; baseline "open": its name is all that the canonical schema says of it.

    `scale` None: norm_adv_by_std_in_grpo says. needs: what RayPPOTrainer alone hands it, and the V1 trainer does not.
    """

    name: str
    baseline: str
    scale: str | None
    epsilon: float | None = None
    ddof: int | None = None
    versions: str = ""
    needs: str = ""

    @property
    def open_term(self) -> str:
        """The name of the estimator in the specification, where the schema has no words for it."""
        return f"advantage: {self.name}" if self.baseline == "open" else ""


def names_in(version: str, rows: Mapping[str, LossMode] | Mapping[str, VerlEstimator]) -> list[str]:
    """The names of those rows that a version has."""
    return [row.name for row in rows.values() if holds(row.versions, version)]


_SQUARES_OF = "the sum of squared probabilities"
ESTIMATORS = {
    row.name: row
    for row in (
        VerlEstimator("grpo", "group_mean", None, 1e-6, 1),
        VerlEstimator("grpo_vectorized", "group_mean", None, 1e-6, 1, ">=0.6.0"),
        VerlEstimator("rloo", "leave_one_out", "none", versions=">=0.3.0"),
        VerlEstimator("rloo_vectorized", "leave_one_out", "none", versions=">=0.6.0"),
        VerlEstimator("reinforce_plus_plus", "none", "batch", ddof=1),
        VerlEstimator("reinforce_plus_plus_baseline", "group_mean", "batch", ddof=1, versions=">=0.4.0"),
        VerlEstimator("gae", "value", "batch", ddof=1),
        VerlEstimator("remax", "open", "none", needs="the reward of a greedy completion"),
        VerlEstimator("opo", "open", "none", versions=">=0.4.0"),  # the group's rewards, weighed by length
        VerlEstimator(
            "grpo_passk", "open", None, 1e-6, 1, ">=0.4.0"
        ),  # the best completion of a group alone has an advantage
        VerlEstimator("gpg", "open", "none", versions=">=0.5.0"),  # times the share of groups with any signal
        VerlEstimator("gdpo", "open", None, 1e-6, 1, ">=0.7.1", "rewards that are normalised one by one"),
        VerlEstimator("optimal_token_baseline", "open", "none", versions=">=0.7.1", needs=_SQUARES_OF),
        VerlEstimator("tir_optimal_token_baseline", "open", "none", versions=">=0.7.1", needs=_SQUARES_OF),
    )
}
"""Estimators of the advantage by name. Source: verl 0.4.0 to 0.9.1 core_algos; 0.9.1 trainer/ppo/v1/trainer_base.py
_compute_advantage. Of two that mean the same, `write` takes the first. masked_whiten adds its 1e-8 to the variance, not
to the deviation, so that the epsilon stays open."""

KL_ESTIMATORS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
"""KL estimators by verl's names. Source: verl 0.9.1 core_algos.kl_penalty_forward. A trailing + takes k2's gradient
with the named value."""


def kl_estimators(version: str) -> list[str]:
    """The names of KL estimators that a version has."""
    plus = [f"{name}+" for name in KL_ESTIMATORS] if holds(">=0.8.0", version) else []
    return [*KL_ESTIMATORS, *plus]


KL_NAMES = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
KL_CLAMP = 10.0
"""Bound of k3. Source: verl 0.4.0 to 0.9.1 core_algos.kl_penalty."""

REJECTS = "reject "
"""The word before what `rollout_correction.rollout_rs` takes out of the mask, in `objective.sampler_correction`."""

TORCH_OPTIMIZERS = (
    *("AdamW", "Adam", "Adamax", "NAdam", "RAdam"),
    *("SGD", "Adadelta", "Adafactor", "Adagrad", "ASGD", "RMSprop"),
)
"""Classes of torch.optim that take verl's arguments, lr and weight_decay (betas where the name has adam in it), for
`optim.optimizer` of FSDP from 0.6.1 on. Source: verl 0.6.1 to 0.9.1 build_optimizer; torch 2.13.0."""
TORCH_IMPLEMENTATION = "torch.optim"
OPTIMIZERS: Mapping[str, Mapping[str, str]] = {
    # engine: native name to canonical
    "fsdp": {name: name.lower() for name in TORCH_OPTIMIZERS},
    "megatron": {"adam": "adamw", "sgd": "sgd", "muon": "muon"},
    "veomni": {"adamw": "adamw", "anyprecision_adamw": "anyprecision_adamw"},
    "torchtitan": {"AdamW": "adamw", "Adam": "adam"},
}
"""Optimizers by engine and name: Megatron's adam decays like AdamW; muon since 0.9.0. Source: verl 0.4.1 to 0.9.1
utils/megatron/optimizer.py; VeOmni build_optimizer; torchtitan OptimizersContainer."""


def optimizer_key(engine: str, version: str) -> str | None:
    """The key that names the optimizer; None where nothing does. Source: verl 0.4.0 to 0.6.0 fsdp_workers.py: AdamW;
    0.4.0 megatron_utils.py: adam."""
    if not holds({"fsdp": ">=0.6.1", "megatron": ">=0.4.1"}.get(engine, ""), version):
        return None
    return f"{ACTOR}optim.{'name' if engine == 'torchtitan' else 'optimizer'}"


SCHEDULES: Mapping[str, tuple[str, ...]] = {
    # engine: names in canonical words
    "fsdp": ("constant", "cosine", "cosine_with_min_lr"),
    "megatron": ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    "veomni": ("constant", "linear", "cosine"),
    "torchtitan": ("linear", "sqrt", "cosine"),
}
"""Schedules of the learning rate by engine. Source: verl 0.4.0 to 0.9.1 fsdp_workers.py, FSDPOptimizerConfig;
Megatron-Core OptimizerParamScheduler; VeOmni build_lr_scheduler; torchtitan LRSchedulersContainer."""
EPSILON, BETAS = 1e-8, (0.9, 0.999)
"""The numbers of an engine that is handed none. Source: torch 2.13.0 AdamW; Megatron-Core OptimizerConfig; VeOmni
build_optimizer."""
PRECISIONS = {
    **dict.fromkeys(("fp32", "float32", "32"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "16"), "fp16"),
}
"""Precisions by verl's names. Source: verl 0.4.0 to 0.9.1 utils/torch_dtypes.py PrecisionType.to_dtype."""
