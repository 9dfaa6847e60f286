"""What verl's settings mean: a run to a canonical spec, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchbridge.clipping import canonical_bound, native_bound
from batchbridge.schedules import WARMUP_START, schedule_parts, schedule_text
from batchbridge.spec import (
    Advantage,
    Carried,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Staleness,
    Topology,
)
from batchbridge_verl.run import (
    BUDGET,
    DYNAMIC,
    EPOCHS,
    FORWARD_BUDGET,
    GROUP,
    MICRO,
    MINI,
    NODES,
    PARALLEL,
    PROMPTS,
    STRATEGY,
    THRESHOLD,
    TRAINER_MODE,
    Run,
)
from batchbridge_verl.settings import (
    ACTOR,
    BY_KEY,
    ENGINE,
    NEWEST,
    REFERENCE,
    ROLLOUT,
    defaults_of,
    engines_of,
    holds,
    reads,
)

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
"""`loss_agg_mode`. Source: verl 0.4.0 to 0.9.1 core_algos.agg_loss."""
AGGREGATION_VERSIONS: Mapping[str, str] = {"token-sum": ">=0.9.0"}
"""Versions of the values of `loss_agg_mode` that not all have. Source: verl 0.8.0, 0.9.0 core_algos.agg_loss."""


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
"""Source: verl 0.4.1 to 0.9.1 core_algos.register_policy_loss. bypass_mode belongs to rollout_correction. gspo is PPO's
surrogate with the ratio of whole sequences."""


def aggregations_of(mode: LossMode, version: str) -> tuple[str, ...]:
    """The aggregations (canonical) that a loss mode can take in `version`."""
    if (insisted := mode.insists_on(version)) is not None:
        return (insisted,)
    return tuple(
        canonical for name, canonical in AGGREGATIONS.items() if holds(AGGREGATION_VERSIONS.get(name, ""), version)
    )


class Estimator(NamedTuple):
    """One `algorithm.adv_estimator` that the canonical schema can say; `scale` None: norm_adv_by_std_in_grpo says."""

    name: str
    baseline: str
    scale: str | None
    epsilon: float | None = None
    ddof: int | None = None
    versions: str = ""


ESTIMATORS = {
    row.name: row
    for row in (
        Estimator("grpo", "group_mean", None, 1e-6, 1),
        Estimator("grpo_vectorized", "group_mean", None, 1e-6, 1, ">=0.6.0"),
        Estimator("rloo", "leave_one_out", "none"),
        Estimator("rloo_vectorized", "leave_one_out", "none", versions=">=0.6.0"),
        Estimator("reinforce_plus_plus", "none", "batch", ddof=1),
        Estimator("reinforce_plus_plus_baseline", "group_mean", "batch", ddof=1),
        Estimator("gae", "value", "batch", ddof=1),
    )
}
"""Source: verl 0.9.1 core_algos. Of two that mean the same, `write` takes the first. masked_whiten adds its 1e-8 to the
variance, not to the deviation, so that the epsilon stays open."""
INEXPRESSIBLE_ESTIMATORS: Mapping[str, str] = {
    "remax": "its baseline is the reward of a greedy completion",
    "opo": "its baseline weighs the group's rewards by length",
    "grpo_passk": "only the best completion of a group has an advantage",
    "gpg": "it scales by the share of groups with any signal",
    "gdpo": "it normalises several rewards one by one",
    "optimal_token_baseline": "its baseline differs from token to token",
    "tir_optimal_token_baseline": "its baseline differs from token to token",
}
"""Estimators of verl 0.4.0 to 0.9.1 that the schema has no words for."""

KL_ESTIMATORS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
"""Source: verl 0.9.1 core_algos.kl_penalty_forward. A trailing + takes k2's gradient with the named value."""
KL_NAMES = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
KL_CLAMP = 10.0
"""Bound of k3. Source: verl 0.4.0 to 0.9.1 core_algos.kl_penalty."""

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
"""Megatron's adam decays like AdamW; muon since 0.9.0. Source: verl 0.4.1 to 0.9.1 utils/megatron/optimizer.py;
VeOmni build_optimizer; torchtitan OptimizersContainer."""
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    # engine: names in canonical words
    "fsdp": ("constant", "cosine", "cosine_with_min_lr"),
    "megatron": ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    "veomni": ("constant", "linear", "cosine"),
    "torchtitan": ("linear", "sqrt", "cosine"),
}
"""Source: verl 0.4.0 to 0.9.1 fsdp_workers.py, FSDPOptimizerConfig; Megatron-Core OptimizerParamScheduler; VeOmni
build_lr_scheduler; torchtitan LRSchedulersContainer."""
EPSILON, BETAS = 1e-8, (0.9, 0.999)
"""Of an engine that is handed none. Source: torch 2.13.0 AdamW; Megatron-Core OptimizerConfig; VeOmni
build_optimizer."""
PRECISIONS = {
    **dict.fromkeys(("fp32", "float32", "32"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "16"), "fp16"),
}
"""Source: verl 0.4.0 to 0.9.1 utils/torch_dtypes.py PrecisionType.to_dtype."""


class Told(NamedTuple):
    """One canonical value: the native key that said it, or the formula that gives it."""

    value: Any
    key: str | None = None
    formula: str | None = None


def meaning(run: Run) -> dict[str, Told] | None:
    """Canonical field (dotted) -> what the run says; None where sizes, loss or advantages are left open."""
    mode, estimator = LOSS_MODES.get(run.surrogate), ESTIMATORS.get(run["algorithm.adv_estimator"])
    aggregation = AGGREGATIONS.get(run[f"{ACTOR}loss_agg_mode"])
    if mode is None or estimator is None or aggregation is None or not run.plain or run.completions_per_step < 1:
        return None
    if run[f"{ACTOR}use_kl_loss"] and run["algorithm.use_kl_in_reward"]:
        return None
    tensor, pipeline, context = run.parallel
    keys = PARALLEL[run.engine]
    told = {
        "topology.world_size": Told(run.world, None, f"trainer.nnodes x trainer.n_gpus_per_node = {run.world}"),
        "topology.tensor_parallel": Told(tensor, keys[0], None if keys[0] else f"{run.engine} has none"),
        "topology.pipeline_parallel": Told(pipeline, keys[1], None if keys[1] else f"{run.engine} has none"),
        "topology.context_parallel": Told(context, run.context_key),
        "rollout.prompts_per_rollout": Told(run[PROMPTS], PROMPTS),
        "rollout.completions_per_prompt": Told(run[GROUP], GROUP),
        "optimizer_step.completions_per_step": Told(
            run.completions_per_step,
            None,
            f"{MINI} {run[MINI]} x {GROUP} {run[GROUP]}"
            + (" (floored on each replica)" if run.completions_per_step != run.asked_per_step else ""),
        ),
        "optimizer_step.passes_per_rollout": Told(run[EPOCHS], EPOCHS),
        "optimizer_step.rollout_shuffle": _shuffle(run),
        "advantage.baseline": Told(estimator.baseline, "algorithm.adv_estimator"),
        "order.prompt_shuffle": Told("epoch_permutation" if run["data.shuffle"] else "none", "data.shuffle"),
        "order.last_rollout": Told("drop", None, "the data loader drops an epoch's incomplete batch"),
        "order.last_optimizer_step": Told(last_step(run), None, _LAST_STEP[last_step(run)]),
        "horizon.lr_tick": Told("rollout", None, "the scheduler steps once per update of the actor"),
    }
    told["order.seed"] = (
        Told(TORCH_SEED, None, "data.seed null: the seed of a new torch.Generator")
        if run["data.seed"] is None
        else Told(run["data.seed"], "data.seed")
    )
    if run["data.gen_batch_size"] not in (None, run[PROMPTS]):
        told["rollout.prompts_per_generation_batch"] = Told(run["data.gen_batch_size"], "data.gen_batch_size")
    if run.v1 and run["algorithm.filter_groups.enable"]:
        told["rollout.group_filter"] = Told("drop_zero_variance", "algorithm.filter_groups.enable")
    if run.entry == "one_step_off":
        told["staleness.mode"] = Told("lookahead", None, "one_step_off_policy generates one rollout ahead")
        told["staleness.maximum"] = Told(1, None, "one_step_off_policy generates one rollout ahead")
    if run.ahead:
        told |= _ahead(run)
    steps = run["trainer.total_training_steps"]
    if steps is not None:
        told["horizon.rollouts"] = Told(steps, "trainer.total_training_steps")
    else:
        told["horizon.epochs"] = Told(float(run["trainer.total_epochs"]), None, "trainer.total_epochs")
    told |= _micro_batch(run)
    told |= _loss(run, mode, aggregation)
    told |= _advantage(run, estimator)
    told |= _objective(run, mode)
    told |= _carried(run)
    return told


def _ahead(run: Run) -> dict[str, Told]:
    """How old completions of colocate_async may be. Source: verl 0.9.1 replay_buffer.ReplayBufferAsync: a group that
    spans more than the threshold's rollouts is dropped; "wait" waits for those that still run, not for those that lie
    there finished."""
    if run[STRATEGY] == "drop" and run[THRESHOLD] is not None:
        return {
            "staleness.mode": Told("bounded", TRAINER_MODE),
            "staleness.maximum": Told(
                run[THRESHOLD] - 1, THRESHOLD, "rollouts that a group spans, its own not counted"
            ),
        }
    return {
        "staleness.mode": Told("unbounded", TRAINER_MODE),
        "staleness.maximum": Told(None, THRESHOLD if run[THRESHOLD] is None else STRATEGY),
    }


_LAST_STEP = {
    "pad": "the V1 trainer pads the rollout with rows whose loss mask is 0",
    "error": "the mini-batch iterator asserts whole mini-batches",
    "short": "legacy workers split each replica's rows, the last mini-batch being smaller",
}


def last_step(run: Run) -> str:
    """What a remainder of completions becomes."""
    return "pad" if run.v1 else "short" if run.legacy else "error"


def _shuffle(run: Run) -> Told:
    key = f"{ACTOR}shuffle"
    if run.legacy and run.engine != "megatron":
        return Told("none", None, "dp_actor does not shuffle")
    return Told("completions" if run[key] else "none", key)


def _micro_batch(run: Run) -> dict[str, Told]:
    told = {}
    if run[DYNAMIC]:
        told["micro_batch.tokens_per_device"] = Told(run[BUDGET], BUDGET)
        forward = f"{ROLLOUT}log_prob_max_token_len_per_gpu"
        if run[f"{ROLLOUT}log_prob_use_dynamic_bsz"] and run[forward] != run[BUDGET]:
            told["micro_batch.forward_tokens_per_device"] = Told(run[forward], forward)
    elif run.micro is not None:
        told["micro_batch.completions_per_device"] = Told(
            run.micro, MICRO if run[MICRO] is not None else None, "ppo_micro_batch_size / replicas"
        )
        forward = f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"
        if run[forward] is not None and run[forward] != run.micro:
            told["micro_batch.forward_completions_per_device"] = Told(run[forward], forward)
    return told


def _loss(run: Run, mode: LossMode, aggregation: str) -> dict[str, Told]:
    said = Told(aggregation, f"{ACTOR}loss_agg_mode")
    insisted = mode.insists_on(run.version)
    if insisted in (None, aggregation):
        return _term(run, "policy", said if insisted is None else _always(mode))
    told = _term(run, "policy", _always(mode))
    # Source: verl 0.6.0 to 0.7.1 dp_actor.update_policy, 0.8.0 to 0.9.1 workers/utils/losses.py ppo_loss.
    if run[f"{ACTOR}use_kl_loss"] and run[f"{ACTOR}kl_loss_coef"]:
        told |= _term(run, "kl", said)
    if run[f"{ACTOR}entropy_coeff"]:
        told |= _term(run, "entropy", said)
    return told


def _always(mode: LossMode) -> Told:
    return Told(mode.aggregation, None, f"{mode.name} always aggregates so")


def _term(run: Run, term: str, aggregation: Told) -> dict[str, Told]:
    """How one term of the loss (policy, kl, entropy) weighs tokens."""
    told = {f"loss.{term}.aggregation": aggregation}
    if aggregation.value == "sequence_sum_over_constant":
        factor = f"{ACTOR}loss_scale_factor"
        told[f"loss.{term}.constant"] = (
            Told(run["data.max_response_length"], None, "loss_scale_factor null: the response's width")
            if run[factor] is None
            else Told(run[factor], factor)
        )
    if run.legacy and aggregation.value.startswith("sequence") and holds(">=0.6.1", run.version):
        told[f"loss.{term}.count_empty"] = Told(False, None, "agg_loss leaves fully masked sequences out")
    return told


def _advantage(run: Run, estimator: Estimator) -> dict[str, Told]:
    key = "algorithm.norm_adv_by_std_in_grpo"
    if estimator.scale is not None:
        told = {"advantage.scale": Told(estimator.scale, None, f"{estimator.name} scales so")}
    else:
        told = {"advantage.scale": Told("group" if run[key] else "none", key)}
    if told["advantage.scale"].value != "none":
        told["advantage.epsilon"] = Told(estimator.epsilon, None, "fixed in core_algos")
        told["advantage.ddof"] = Told(estimator.ddof, None, "fixed in core_algos")
    return told


def clip_bound(run: Run, side: str) -> tuple[float, str]:
    """The bound that acts on one side, and its key: clip_ratio counts only where the side's own key is null."""
    own = f"{ACTOR}clip_ratio_{side}"
    key = own if run[own] is not None else f"{ACTOR}clip_ratio"
    return run[key], key


def kl_name(native: str) -> str:
    """The canonical name of a native KL estimator."""
    plain = native.removesuffix("+")
    name = KL_ESTIMATORS.get(plain, plain)
    return f"{name}+" if native.endswith("+") and name != "k2" else name


def correction(run: Run) -> str | None:
    """`token_truncate [-, 2.0]; reject token_k1 0.6_1.6`: the weights and the rejection of rollout_correction."""
    prefix = "algorithm.rollout_correction."
    parts = []
    if (level := run[f"{prefix}rollout_is"]) is not None:
        parts.append(f"{level}_truncate [-, {run[f'{prefix}rollout_is_threshold']}]")
    if (rejection := run[f"{prefix}rollout_rs"]) is not None:
        parts.append(f"reject {rejection} {run[f'{prefix}rollout_rs_threshold']}")
    return "; ".join(parts) or None


def old_logprobs(run: Run) -> Told:
    """Where the ratio's denominator comes from."""
    bypass = "algorithm.rollout_correction.bypass_mode"
    if run[bypass]:
        return Told("sampler", bypass)
    once = run.replicas and run.share and run.completions_per_rollout <= run.share * run.replicas
    if run.legacy and run.engine != "megatron" and holds(">=0.6.0", run.version) and once and run[EPOCHS] == 1:
        return Told("detached", None, "dp_actor takes the current log-probabilities when a rollout is one step")
    return Told("rollout_start", None, "computed once, before the first update")


def _objective(run: Run, mode: LossMode) -> dict[str, Told]:
    told = {
        "surrogate": Told(mode.surrogate, f"{ACTOR}policy_loss.loss_mode"),
        "ratio_level": Told(mode.ratio_level, None, f"{mode.name}"),
        "old_logprobs": old_logprobs(run),
        "entropy_coefficient": Told(run[f"{ACTOR}entropy_coeff"], f"{ACTOR}entropy_coeff"),
    }
    if run.engine != "megatron":
        told["nonfinite_step"] = Told("skip", None, "the optimizer step is left out when the norm is not finite")
    if mode.clips:
        for side in ("low", "high"):
            bound, key = clip_bound(run, side)
            told[f"clip_{side}"] = Told(bound, key)
    if mode.dual_clip:
        told["dual_clip"] = Told(run[f"{ACTOR}clip_ratio_c"], f"{ACTOR}clip_ratio_c")
    if (text := correction(run)) is not None:
        told["sampler_correction"] = Told(text, None, "algorithm.rollout_correction")
    told |= _kl(run)
    return {f"objective.{name}": entry for name, entry in told.items()}


def _kl(run: Run) -> dict[str, Told]:
    for switch, place, factor, name in (
        (f"{ACTOR}use_kl_loss", "loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type"),
        ("algorithm.use_kl_in_reward", "reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"),
    ):
        if run[switch]:
            estimator = kl_name(run[name])
            told = {
                "kl_placement": Told(place, switch),
                "kl_coefficient": Told(run[factor], factor),
                "kl_estimator": Told(estimator, name),
            }
            if estimator.startswith("k3"):
                told["kl_clamp"] = Told(KL_CLAMP, None, "fixed in core_algos.kl_penalty")
            return told
    return {
        "kl_placement": Told("none", f"{ACTOR}use_kl_loss"),
        "kl_coefficient": Told(0.0, None, "use_kl_loss and use_kl_in_reward are off"),
    }


def schedule(run: Run) -> Told:
    """The schedule in the words that adapters share: verl's FSDP engines give a cosine its floor by another name."""
    optim, key = f"{ACTOR}optim.", schedule_key(run)
    if key is None:
        return Told("constant", None, "megatron_workers of 0.4.0 has no schedule")
    if run[key] != "cosine" or run.engine != "fsdp":
        return Told(run[key], key)
    floor = run[f"{optim}min_lr_ratio"] or 0.0
    arguments = {"min_lr_rate": floor, "num_cycles": run[f"{optim}num_cycles"]}
    warms_up = any(told.value for told in _warmup(run).values())
    if floor and warms_up and holds("<0.6.0", run.version):
        # Source: verl 0.4.0 to 0.5.0 torch_functional.get_cosine_schedule_with_warmup; 0.6.0 has init_lr_ratio for it.
        arguments[WARMUP_START] = floor
    text = schedule_text("cosine_with_min_lr", arguments)
    return Told(text, key) if text == run[key] else Told(text, None, f"{key}, {optim}min_lr_ratio, {optim}num_cycles")


def schedule_key(run: Run) -> str | None:
    """The key that names the schedule; None where nothing reads one. Source: verl 0.4.0 megatron_workers.py."""
    optim = f"{ACTOR}optim."
    if run.engine == "torchtitan":
        return f"{optim}decay_type"
    if run.engine == "megatron":
        return f"{optim}lr_decay_style" if holds(">=0.4.1", run.version) else None
    older = f"{optim}warmup_style"
    return older if run[older] is not None else f"{optim}lr_scheduler_type"


def clip_grad_key(run: Run) -> str:
    """The key that bounds the gradient norm: actor.grad_clip in legacy FSDP workers, optim.clip_grad elsewhere, which
    its deprecated name overwrites. Source: verl 0.6.0 to 0.9.1 OptimizerConfig.__post_init__."""
    if run.legacy and run.engine == "fsdp":
        return f"{ACTOR}grad_clip"
    deprecated = f"{ACTOR}optim.grad_clip"
    return f"{ACTOR}optim.clip_grad" if run[deprecated] is None else deprecated


def _argument(run: Run, name: str, override: str) -> str:
    """The key of an argument of the optimizer: override_optimizer_config's own name for it where that is given."""
    key = f"{ACTOR}optim.override_optimizer_config.{override}"
    return f"{ACTOR}optim.{name}" if run[key] is None else key


def optimizer_key(run: Run) -> str | None:
    """The key that names the optimizer; None where nothing does. Source: verl 0.4.0 to 0.6.0 fsdp_workers.py: AdamW;
    0.4.0 megatron_utils.py: adam."""
    if not holds({"fsdp": ">=0.6.1", "megatron": ">=0.4.1"}.get(run.engine, ""), run.version):
        return None
    return f"{ACTOR}optim.{'name' if run.engine == 'torchtitan' else 'optimizer'}"


def _optimizer(run: Run) -> dict[str, Told]:
    """The optimizer and what it is handed: Megatron takes no betas but those of override_optimizer_config."""
    key, implementation = optimizer_key(run), run[f"{ACTOR}optim.optimizer_impl"]
    if key is None:
        told = {"optimizer": Told("adamw", None, f"the {run.engine} workers of verl {run.version} have no other")}
    elif run.engine == "fsdp" and implementation != TORCH_IMPLEMENTATION:
        told = {"optimizer": Told(f"{implementation}.{run[key]}", None, f"{ACTOR}optim.optimizer_impl and optimizer")}
    else:
        told = {"optimizer": Told(OPTIMIZERS[run.engine].get(run[key], run[key]), key)}
    plain = run.engine != "fsdp"
    for canonical, name in (("learning_rate", "lr"), ("weight_decay", "weight_decay")):
        source = f"{ACTOR}optim.{name}" if plain else _argument(run, name, name)
        told[canonical] = Told(run[source], source)
    if run.engine == "megatron":
        for canonical, name, value in (("beta1", "adam_beta1", BETAS[0]), ("beta2", "adam_beta2", BETAS[1])):
            told[canonical] = _overridden(run, name, value)
        return told | {"optimizer_epsilon": _overridden(run, "adam_eps", EPSILON)}
    source = f"{ACTOR}optim.betas" if plain else _argument(run, "betas", "betas")
    betas = run[source]
    two = isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, (int, float)) for b in betas)
    for place, canonical in enumerate(("beta1", "beta2")):
        told[canonical] = Told(float(betas[place]) if two else None, None, source)
    eps = f"{ACTOR}optim.eps"
    own = Told(run[eps], eps) if run.engine == "torchtitan" else _overridden(run, "eps", EPSILON)
    return told | {"optimizer_epsilon": own}


def _overridden(run: Run, name: str, default: float) -> Told:
    key = f"{ACTOR}optim.override_optimizer_config.{name}"
    if run[key] is None:
        return Told(default, None, f"the {run.engine} engine's optimizer, unless {key} says otherwise")
    return Told(run[key], key)


def _bound(run: Run) -> Told:
    """Megatron asks whether there is a bound, the others clip by whatever it is."""
    key = clip_grad_key(run)
    native = run[key]
    return Told(native if run.engine == "megatron" or native is None else canonical_bound(native), key)


def _carried(run: Run) -> dict[str, Told]:
    told = {
        "lr_schedule": schedule(run),
        "max_gradient_norm": _bound(run),
        "dropout": Told("on", None, "as the model's configuration says"),
        "max_prompt_tokens": Told(run["data.max_prompt_length"], "data.max_prompt_length"),
        "max_completion_tokens": Told(run["data.max_response_length"], "data.max_response_length"),
        "temperature": Told(run[f"{ROLLOUT}temperature"], f"{ROLLOUT}temperature"),
        "top_p": Told(run[f"{ROLLOUT}top_p"], f"{ROLLOUT}top_p"),
        "top_k": Told(run[f"{ROLLOUT}top_k"], f"{ROLLOUT}top_k"),
        "precision": precision(run),
    }
    excluded = "biases_and_norms" if run.engine == "megatron" else "nothing"
    told["weight_decay_excludes"] = Told(excluded, None, f"the {run.engine} engine decays all but {excluded}")
    told |= _optimizer(run) | _warmup(run)
    return {f"carried.{name}": entry for name, entry in told.items()}


def precision(run: Run) -> Told:
    """bf16 unless a key says otherwise."""
    key = precision_key(run)
    if key is None:
        return Told("bf16", None, f"the {run.engine} engine's default")
    return Told(PRECISIONS.get(run[key], run[key]), key)


def precision_key(run: Run) -> str | None:
    """The key that says in what the actor computes; None where none does. Source: verl 0.4.0 to 0.7.1 fsdp_workers.py
    (`mixed_precision`, else since 0.6.1 `dtype`); 0.9.1 engine/fsdp/transformer_impl.py:391; 0.6.1 to 0.9.1
    McoreEngineConfig.dtype."""
    mixed = f"{ACTOR}fsdp_config.mixed_precision.param_dtype"
    if run.engine == "fsdp" and run[mixed] is not None:
        return mixed
    if run.engine == "fsdp" and run.legacy and holds(">=0.6.1", run.version):
        return f"{ACTOR}fsdp_config.dtype"
    return f"{ACTOR}megatron.dtype" if run.engine == "megatron" and holds(">=0.6.1", run.version) else None


def _warmup(run: Run) -> dict[str, Told]:
    steps, share = f"{ACTOR}optim.lr_warmup_steps", f"{ACTOR}optim.lr_warmup_steps_ratio"
    if run.engine == "megatron" and holds("<0.4.1", run.version):
        return {"warmup_steps": Told(0.0, None, "megatron_workers of 0.4.0 has no schedule")}
    # Source: verl 0.7.1 to 0.9.1 workers/engine/veomni: the ratio only.
    count = None if run.engine == "veomni" else run[steps]
    if count is not None and (count > 0 or (count == 0 and run.legacy)):
        return {"warmup_steps": Told(float(count), None, steps)}
    if run[share]:
        return {"warmup_ratio": Told(run[share], share)}
    return {"warmup_steps": Told(0.0, None, f"{steps} and {share} are off")}


def spec_of(told: Mapping[str, Told]) -> Spec:
    """The spec that `meaning` tells."""
    groups: dict[str, dict[str, Any]] = {}
    for path, entry in told.items():
        group, _, name = path.partition(".")
        groups.setdefault(group, {})[name] = entry.value
    terms: dict[str, dict[str, Any]] = {}
    for path, value in groups["loss"].items():
        term, _, name = path.partition(".")
        terms.setdefault(term, {})[name] = value
    return Spec(
        topology=Topology(**groups["topology"]),
        rollout=Rollout(**groups["rollout"]),
        optimizer_step=OptimizerStep(**groups["optimizer_step"]),
        loss=Loss(**{term: LossTerm(**values) for term, values in terms.items()}),
        horizon=Horizon(**groups["horizon"]),
        micro_batch=MicroBatch(**groups.get("micro_batch", {})),
        advantage=Advantage(**groups["advantage"]),
        order=Order(**groups["order"]),
        staleness=Staleness(**groups.get("staleness", {})),
        objective=Objective(**groups["objective"]),
        carried=Carried(**groups["carried"]),
    )


# ---- back


class Problems(list[str]):
    """What verl cannot say, in canonical names."""

    def need(self, holds: bool, message: str) -> bool:
        """Adds `message` unless `holds`."""
        if not holds:
            self.append(message)
        return holds


def settings_for(spec: Spec, problems: Problems, version: str = NEWEST) -> dict[str, Any]:
    """The native settings that say `spec`, world size included; what they cannot say goes to `problems`, and whatever
    is overlooked here comes out when `write` reads its own work."""
    to = _target(spec, version)
    values: dict[str, Any] = {ENGINE: to.engine} if to.engine != "fsdp" else {}
    for part in (_write_topology, _write_sizes, _write_loss, _write_objective, _write_carried):
        part(spec, to, values, problems)
    known = defaults_of(version, to.engine)
    older = f"{ACTOR}optim.warmup_style"
    for newer in (f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.lr_decay_style"):
        if newer in values and newer not in known and older in known:
            values[older] = values.pop(newer)
    for key in [key for key in values if key != ENGINE and not reads(key, version, to.engine, known)]:
        # Of itself it holds; what does not shows when `write` reads its own work.
        if values[key] is not None and values[key] != (BY_KEY[key].absent if key in BY_KEY else None):
            problems.append(f"{key} is no setting of verl {version} with the {to.engine} engine")
        del values[key]
    return values


class Target(NamedTuple):
    """What is written for: the version, the engine, and whether its workers are the legacy ones (`Run.legacy`)."""

    version: str
    engine: str
    legacy: bool


def _target(spec: Spec, version: str) -> Target:
    new = holds(">=0.8.0", version) or (holds(">=0.7.1", version) and spec.order.last_optimizer_step == "error")
    able = [engine for engine in engines_of(version) if _can(engine, spec)]
    split = spec.topology.tensor_parallel > 1 or spec.topology.pipeline_parallel > 1
    decays = spec.carried.weight_decay_excludes == "biases_and_norms"
    return Target(version, able[0] if able else "megatron" if split or decays else "fsdp", not new)


def _can(engine: str, spec: Spec) -> bool:
    """Whether an engine has the devices, the decay and the schedule of `spec`: what tells the engines apart."""
    tensor, pipeline, _ = PARALLEL[engine]
    topology, carried = spec.topology, spec.carried
    if (tensor is None and topology.tensor_parallel > 1) or (pipeline is None and topology.pipeline_parallel > 1):
        return False
    excluded = "biases_and_norms" if engine == "megatron" else "nothing"
    if carried.weight_decay_excludes not in (None, excluded):
        return False
    schedule = None if carried.lr_schedule is None else carried.lr_schedule.partition(" ")[0]
    optimizer = carried.optimizer in (None, *OPTIMIZERS[engine].values())
    return schedule in (None, *SCHEDULES[engine]) and (optimizer or engine == "fsdp")


def nodes_and_gpus(world: int) -> tuple[int, int]:
    """Nodes and GPUs per node (at most 8, as many as divide) of `world` devices."""
    gpus = next(size for size in range(min(world, 8), 0, -1) if world % size == 0)
    return world // gpus, gpus


def _write_topology(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    topology = spec.topology
    if problems.need(topology.world_size >= 1, f"topology.world_size = {topology.world_size}: at least 1"):
        values[NODES], values["trainer.n_gpus_per_node"] = nodes_and_gpus(topology.world_size)
    sizes = (topology.tensor_parallel, topology.pipeline_parallel, topology.context_parallel)
    for key, size in zip(PARALLEL[to.engine], sizes, strict=True):
        if key is not None:
            values[key] = size
    if topology.context_parallel > 1 and to.engine == "fsdp":
        values["actor_rollout_ref.model.use_remove_padding"] = True
    values[f"{ROLLOUT}name"] = "vllm"
    values[f"{ROLLOUT}tensor_model_parallel_size"] = 1


def _write_sizes(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    rollout, step, micro = spec.rollout, spec.optimizer_step, spec.micro_batch
    group, completions = rollout.completions_per_prompt, step.completions_per_step
    values[GROUP] = group
    if problems.need(rollout.prompts_per_rollout is not None, "rollout.prompts_per_rollout is open: verl needs it"):
        values[PROMPTS] = rollout.prompts_per_rollout
    if problems.need(completions is not None, "optimizer_step.completions_per_step is open: verl needs it"):
        assert completions is not None
        below = completions // group * group if group else 0
        mini = -(-completions // group) if group > 0 else 0
        replicas = spec.topology.data_parallel_size
        floored = to.legacy and replicas > 0 and mini * group // replicas * replicas == completions
        if problems.need(
            group > 0 and (completions % group == 0 or floored),
            f"optimizer_step.completions_per_step = {completions}: verl counts whole groups of {group}; nearest: "
            f"{f'{below} or ' if below else ''}{below + group}",
        ):
            values[MINI] = mini
    _write_staleness(spec, to, values, problems)
    values[EPOCHS] = step.passes_per_rollout
    values[f"{ACTOR}shuffle"] = step.rollout_shuffle == "completions"
    if micro.tokens_per_device is not None:
        values |= budget_settings(micro)
    elif problems.need(
        micro.completions_per_device is not None, "micro_batch is open: verl needs a size or a token budget"
    ):
        forward = micro.forward_completions_per_device or micro.completions_per_device
        values[MICRO] = micro.completions_per_device
        values[f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"] = forward
        values["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] = forward
    if rollout.prompts_per_generation_batch is not None:
        values["data.gen_batch_size"] = rollout.prompts_per_generation_batch
    if rollout.group_filter != "none":
        values["algorithm.filter_groups.enable"] = True
        values["algorithm.filter_groups.metric"] = "reward"  # what the spec's filter goes by
    values["data.shuffle"] = spec.order.prompt_shuffle != "none"
    values["data.seed"] = None if spec.order.seed == TORCH_SEED else spec.order.seed
    problems.need(spec.order.seed is not None, "order.seed is open: verl always has one")
    if spec.order.last_optimizer_step == "error" and holds(">=0.9.0", to.version):
        values["trainer.use_v1"] = False
    if not to.legacy and holds("<0.8.0", to.version):
        values["trainer.use_legacy_worker_impl"] = "disable"
    horizon = spec.horizon
    problems.need(horizon.optimizer_steps is None, "horizon.optimizer_steps: verl counts rollouts or epochs")
    if horizon.rollouts is not None:
        values["trainer.total_training_steps"] = horizon.rollouts
    if horizon.epochs is not None and problems.need(
        horizon.epochs == int(horizon.epochs), f"horizon.epochs = {horizon.epochs}: verl takes whole epochs"
    ):
        values["trainer.total_epochs"] = int(horizon.epochs)


def budget_settings(micro: MicroBatch) -> dict[str, Any]:
    """What cuts by the token budgets of `micro`; of forward-only passes as in training where none is given, through
    verl's own interpolations."""
    values: dict[str, Any] = {DYNAMIC: True, BUDGET: micro.tokens_per_device}
    if micro.forward_tokens_per_device is not None:
        values[FORWARD_BUDGET] = micro.forward_tokens_per_device
    return values


def resolved_budget_settings(micro: MicroBatch) -> dict[str, Any]:
    """The same in a configuration whose interpolations are resolved: what follows the actor's settings is named, too.

    Source: verl 0.8.0 to 0.9.1 trainer/config/rollout/rollout.yaml, ref/ref.yaml; main_ppo resolves them.
    """
    forward = micro.forward_tokens_per_device or micro.tokens_per_device
    followers = {"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": forward}
    groups = (ROLLOUT, REFERENCE)
    return budget_settings(micro) | {group + name: value for group in groups for name, value in followers.items()}


def _write_staleness(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    staleness = spec.staleness
    if staleness.mode == "sync":
        return
    if problems.need(
        staleness.mode in ("bounded", "unbounded") and holds(">=0.9.0", to.version),
        f"staleness.mode = {staleness.mode}: settings of main_ppo say sync, and since 0.9.0 bounded and unbounded; one "
        "rollout ahead is another program, verl.experimental.one_step_off_policy.main_ppo",
    ):
        problems.need(
            staleness.unit == "rollouts",
            f"staleness.unit = {staleness.unit}: verl counts the rollouts that a group spans",
        )
        bounded = staleness.mode == "bounded" and problems.need(
            staleness.maximum is not None, "staleness.maximum is open: bounded by nothing"
        )
        values[TRAINER_MODE] = "colocate_async"
        values[THRESHOLD] = (staleness.maximum or 0) + 1 if bounded else None
        problems.need(
            spec.order.last_optimizer_step != "error",
            "order.last_optimizer_step = error: the V1 trainer, which alone generates ahead, pads",
        )


def _write_loss(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    native = {canonical: name for name, canonical in AGGREGATIONS.items()}
    policy = spec.loss.policy
    other = next((term for term in (spec.loss.kl, spec.loss.entropy) if term not in (None, policy)), None)
    modes = _loss_modes_for(spec.objective)
    if other is not None and problems.need(
        bool(modes) and modes[0].insists_on(to.version) == policy.aggregation,
        "loss.kl, loss.entropy: verl's are as the policy's term, except beside sapo, geo_mean, and gspo before 0.9.1",
    ):
        policy = other  # the loss mode takes its own, and loss_agg_mode is that of the other terms
    if problems.need(
        policy.aggregation in native, f"loss.policy.aggregation = {policy.aggregation}: verl has {', '.join(native)}"
    ):
        values[f"{ACTOR}loss_agg_mode"] = native[policy.aggregation]
    # Before 0.7.0 the response's width is the only constant.
    own = holds(">=0.7.0", to.version) or policy.constant != spec.carried.max_completion_tokens
    if policy.constant is not None and own:
        values[f"{ACTOR}loss_scale_factor"] = policy.constant
    advantage = spec.advantage
    names = list(_estimators_for(advantage))
    if problems.need(
        bool(names), f"advantage.baseline = {advantage.baseline} with scale = {advantage.scale}: verl has none such"
    ):
        values["algorithm.adv_estimator"] = names[0]
        values["algorithm.norm_adv_by_std_in_grpo"] = advantage.scale == "group"
        if names[0] == "gae":
            values["critic.ppo_micro_batch_size_per_gpu"] = values.get(MICRO)


def _estimators_for(advantage: Advantage) -> Iterator[str]:
    for row in ESTIMATORS.values():
        scales = ("group", "none") if row.scale is None else (row.scale,)
        if row.baseline == advantage.baseline and advantage.scale in scales:
            yield row.name


_CORRECTION = re.compile(r"(?:(\w+)_truncate \[-, (\S+)\])?(?:; )?(?:reject (\S+) (\S+))?")


def _loss_modes_for(objective: Objective) -> list[LossMode]:
    surrogate, level = objective.surrogate or "ppo", objective.ratio_level
    return [mode for mode in LOSS_MODES.values() if mode.surrogate == surrogate and level in (None, mode.ratio_level)]


def _write_objective(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    surrogate, level = objective.surrogate or "ppo", objective.ratio_level
    modes = _loss_modes_for(objective)
    named = ", ".join(f"{mode.surrogate} ({mode.ratio_level})" for mode in LOSS_MODES.values())
    if problems.need(bool(modes), f"objective.surrogate = {surrogate} with ratio_level = {level}: verl has {named}"):
        mode = modes[0]
        values[f"{ACTOR}policy_loss.loss_mode"] = mode.name
        for side, bound in (("low", objective.clip_low), ("high", objective.clip_high)):
            if bound is not None:
                problems.need(mode.clips, f"objective.clip_{side} = {bound}: verl's {surrogate} does not clip")
                values[f"{ACTOR}clip_ratio_{side}"] = bound
        if objective.dual_clip is not None:
            problems.need(objective.dual_clip > 1, f"objective.dual_clip = {objective.dual_clip}: must be above 1")
            values[f"{ACTOR}clip_ratio_c"] = objective.dual_clip
    if objective.old_logprobs == "sampler":
        values["algorithm.rollout_correction.bypass_mode"] = True
    if objective.sampler_correction is not None:
        match = _CORRECTION.fullmatch(objective.sampler_correction)
        if problems.need(
            match is not None and bool(match[0]),
            f"objective.sampler_correction = {objective.sampler_correction}: verl's are token_truncate and "
            "sequence_truncate, as in `token_truncate [-, 2.0]`, and `reject NAMES BOUNDS`",
        ):
            assert match is not None
            prefix = "algorithm.rollout_correction."
            for key, text in zip(
                ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold"),
                match.groups(),
                strict=True,
            ):
                if text is not None:
                    values[prefix + key] = _number_or_text(text)
    if objective.entropy_coefficient is not None:
        values[f"{ACTOR}entropy_coeff"] = objective.entropy_coefficient
    _write_kl(spec, values, problems)


def _number_or_text(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return None if text == "None" else text


def _write_kl(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    place = objective.kl_placement or ("loss" if objective.kl_coefficient else "none")
    values[f"{ACTOR}use_kl_loss"] = place == "loss"
    values["algorithm.use_kl_in_reward"] = place == "reward"
    factor, name = (
        ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
        if place == "reward"
        else (f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type")
    )
    if place == "none":
        problems.need(not objective.kl_coefficient, "objective.kl_coefficient without a kl_placement")
        return
    if objective.kl_coefficient is not None:
        values[factor] = objective.kl_coefficient
    if objective.kl_estimator is not None:
        plain = objective.kl_estimator.removesuffix("+")
        if problems.need(
            plain in KL_NAMES, f"objective.kl_estimator = {objective.kl_estimator}: verl has {', '.join(KL_NAMES)}"
        ):
            values[name] = KL_NAMES[plain] + ("+" if objective.kl_estimator.endswith("+") else "")


def _write_carried(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    carried, optim = spec.carried, f"{ACTOR}optim."
    for name, key in (
        ("learning_rate", f"{optim}lr"),
        ("weight_decay", f"{optim}weight_decay"),
        ("max_prompt_tokens", "data.max_prompt_length"),
        ("max_completion_tokens", "data.max_response_length"),
        ("temperature", f"{ROLLOUT}temperature"),
        ("top_p", f"{ROLLOUT}top_p"),
        ("top_k", f"{ROLLOUT}top_k"),
    ):
        if getattr(carried, name) is not None:
            values[key] = getattr(carried, name)
    megatron = to.engine == "megatron"
    if (bound := carried.max_gradient_norm) is not None:
        key = f"{ACTOR}grad_clip" if to.legacy and to.engine == "fsdp" else f"{optim}clip_grad"
        values[key] = bound if megatron else native_bound(bound)
    _write_optimizer(spec, to, values, problems)
    if carried.lr_schedule is not None:
        _write_schedule(carried.lr_schedule, to, values, problems)
    if carried.warmup_ratio:
        values[f"{optim}lr_warmup_steps_ratio"] = carried.warmup_ratio
        problems.need(not carried.warmup_steps, "carried.warmup_ratio and warmup_steps are both given")
    elif carried.warmup_steps:
        whole = carried.warmup_steps == int(carried.warmup_steps)
        if problems.need(whole, f"carried.warmup_steps = {carried.warmup_steps}: verl takes whole rollouts"):
            values[f"{optim}lr_warmup_steps"] = int(carried.warmup_steps)
    if carried.precision not in (None, "bf16"):
        here = {"fsdp": ("fp32", "fp16"), "megatron": ("fp16",)}.get(to.engine, ())
        problems.need(
            carried.precision in here,
            f"carried.precision = {carried.precision}: verl's {to.engine} engine has {', '.join(('bf16', *here))}",
        )
        if megatron:
            values[f"{ACTOR}megatron.dtype"] = "float16"
        else:
            for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
                values[f"{ACTOR}fsdp_config.mixed_precision.{part}"] = carried.precision


def _write_optimizer(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    carried, optim = spec.carried, f"{ACTOR}optim."
    if carried.optimizer is not None:
        names = {canonical: name for name, canonical in OPTIMIZERS[to.engine].items()}
        implementation, _, other = carried.optimizer.rpartition(".")
        if implementation and to.engine == "fsdp":
            values[f"{optim}optimizer_impl"], values[f"{optim}optimizer"] = implementation, other
        elif problems.need(
            carried.optimizer in names,
            f"carried.optimizer = {carried.optimizer}: verl's {to.engine} engine has {', '.join(names)}",
        ):
            name = names[carried.optimizer]
            values[f"{optim}{'name' if to.engine == 'torchtitan' else 'optimizer'}"] = name
            if not holds({"fsdp": ">=0.6.1", "megatron": ">=0.4.1"}.get(to.engine, ""), to.version):
                # No key names it, and there is one only.
                problems.need(carried.optimizer == "adamw", f"carried.optimizer = {carried.optimizer}: it is adamw")
                del values[f"{optim}optimizer"]
    betas = (carried.beta1, carried.beta2)
    whole = [default if beta is None else beta for beta, default in zip(betas, BETAS, strict=True)]
    override = f"{optim}override_optimizer_config."
    if to.engine == "megatron":
        # Megatron is handed no other betas than these.
        for name, beta, default in zip(("adam_beta1", "adam_beta2"), whole, BETAS, strict=True):
            values |= {f"{override}{name}": beta} if beta != default else {}
    elif betas != (None, None):
        values[f"{optim}betas"] = whole
    epsilon = carried.optimizer_epsilon
    if to.engine == "torchtitan" and epsilon is not None:
        values[f"{optim}eps"] = epsilon
    elif epsilon not in (None, EPSILON):
        problems.need(
            carried.optimizer in (None, "adamw", "adam", "adamax", "nadam", "radam") and to.engine != "veomni",
            f"carried.optimizer_epsilon = {epsilon}: verl hands none to {carried.optimizer} of its {to.engine} engine",
        )
        values[f"{override}{'adam_eps' if to.engine == 'megatron' else 'eps'}"] = epsilon


def _write_schedule(text: str, to: Target, values: dict[str, Any], problems: Problems) -> None:
    try:
        name, arguments = schedule_parts(text)
    except ValueError as error:
        problems.append(f"carried.lr_schedule = {text}: {error}")
        return
    allowed = SCHEDULES[to.engine]
    problems.need(name in allowed, f"carried.lr_schedule = {name}: verl's engine has {', '.join(allowed)}")
    native = "cosine" if name == "cosine_with_min_lr" else name
    key = {"megatron": "lr_decay_style", "torchtitan": "decay_type"}.get(to.engine, "lr_scheduler_type")
    values[f"{ACTOR}optim.{key}"] = native
    floor = {"min_lr_rate": "min_lr_ratio", "num_cycles": "num_cycles", WARMUP_START: None}
    keys = floor if to.engine == "fsdp" else {}
    unknown = set(arguments) - set(keys)
    problems.need(not unknown, f"carried.lr_schedule: verl has no arguments {', '.join(sorted(unknown))}")
    for argument, own in keys.items():
        if own is not None and argument in arguments:
            values[f"{ACTOR}optim.{own}"] = arguments[argument]
