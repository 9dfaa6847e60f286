"""The meaning of verl's settings: a run to canonical values."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit.clipping import canonical_bound
from batchbridge.kit.key_table import field_values
from batchbridge.kit.schedules import WARMUP_START, schedule_text
from batchbridge.kit.values import FieldValue, by, devices
from batchbridge_verl import terms
from batchbridge_verl.ahead import sizes, staleness
from batchbridge_verl.before import WITHOUT_PASSES
from batchbridge_verl.critic import critic
from batchbridge_verl.distillation import estimator_of
from batchbridge_verl.run import (
    BUDGET,
    DYNAMIC,
    EPOCHS,
    FORWARD_BUDGET,
    GPUS,
    GROUP,
    MICRO,
    MINI,
    NODES,
    PROMPTS,
    TOTAL_EPOCHS,
    TOTAL_STEPS,
    VerlRun,
)
from batchbridge_verl.settings import ACTOR, ALONE, OF_COPIES, PARALLEL, ROLLOUT, holds

RESAMPLED = "algorithm.use_pf_ppo"
RESAMPLING = f"rollout: {RESAMPLED} true"
"""The key by which a rollout's completions are drawn again, with weights of their scores."""
_OPTIM = f"{ACTOR}optim."
_ESTIMATOR, _MODE = "algorithm.adv_estimator", f"{ACTOR}policy_loss.loss_mode"


def meaning(run: VerlRun) -> dict[str, FieldValue] | None:
    """Canonical field (dotted) -> what the run says; None where sizes, loss or advantages are left open."""
    mode, (estimator, said_by) = terms.LOSS_MODES.get(run.surrogate), estimator_of(run)
    aggregation = terms.AGGREGATIONS.get(run[f"{ACTOR}loss_agg_mode"])
    if mode is None or estimator is None or aggregation is None or not run.plain or run.completions_per_step < 1:
        return None
    of_critic = critic(run)
    if of_critic is None or (run[f"{ACTOR}use_kl_loss"] and run["algorithm.use_kl_in_reward"]):
        return None
    values = field_values((row for row in ALONE if run[row.key] is not None), run.native) | CONSTANTS
    keys = (*PARALLEL[run.engine][:2], run.context_key)
    for name, size, key in zip(("tensor", "pipeline", "context"), run.parallel, keys, strict=True):
        values[f"topology.{name}_parallel"] = FieldValue(size, key, None if key else f"{run.engine} has none")
    floored = "" if run.completions_per_step == run.asked_per_step else " (floored on each replica)"
    step = f"{MINI} {run[MINI]} x {GROUP} {run[GROUP]}{floored}"
    last, seed, generated = last_step(run), run["data.seed"], run["data.gen_batch_size"]
    values |= {
        "topology.world_size": devices(run.world, run.native, NODES, GPUS),
        "optimizer_step.completions_per_step": by(run.completions_per_step, step, MINI, GROUP),
        "optimizer_step.rollout_shuffle": _shuffle(run),
        "advantage.baseline": FieldValue(estimator.baseline, said_by),
        "order.last_optimizer_step": by(last, _LAST_STEP[last]),
        "order.seed": FieldValue(seed, "data.seed"),
    }
    if seed is None:
        why = "data.seed null: the seed of a new torch.Generator"
        values["order.seed"] = by(terms.TORCH_SEED, why, "data.seed")
    if run.fetched_by != PROMPTS:
        values["rollout.prompts_per_rollout"] = FieldValue(run.fetched, run.fetched_by)
    elif generated not in (None, run.prompts_per_rollout):
        values["rollout.prompts_per_generation_batch"] = FieldValue(generated, "data.gen_batch_size")
    if run.v1 and run["algorithm.filter_groups.enable"]:
        values["rollout.group_filter"] = FieldValue("replace_zero_variance", "algorithm.filter_groups.enable")
    steps = run[TOTAL_STEPS]
    if steps is None or run[TOTAL_EPOCHS] < steps:  # the loop ends with its epochs, and each has a rollout at least
        values["horizon.epochs"] = by(float(run[TOTAL_EPOCHS]), TOTAL_EPOCHS, TOTAL_EPOCHS)
    if holds(WITHOUT_PASSES, run.version):
        values["optimizer_step.passes_per_rollout"] = by(1, "verl 0.2 has no loop over ppo_epochs", EPOCHS)
        if steps is not None and steps > 1:
            values["horizon.rollouts"] = by(steps - 1, "verl 0.2 returns before its last rollout", TOTAL_STEPS)
    parts: dict[str, FieldValue] = {
        **staleness(run),
        **_micro_batch(run),
        **_loss(run, mode, aggregation),
        **_advantage(run, estimator),
        **{f"objective.{name}": entry for name, entry in _objective(run, mode).items()},
        **{f"carried.{name}": entry for name, entry in _carried(run).items()},
        **of_critic,
    }
    if estimator.open_term:
        values["open_terms"] = FieldValue((estimator.open_term,), said_by)
    elif run[_ESTIMATOR] == "gae" and run[RESAMPLED]:  # source: ray_trainer.compute_advantage, in that branch alone
        values["open_terms"] = FieldValue((RESAMPLING,), RESAMPLED, None, (_ESTIMATOR,))
    return values | parts | sizes(run)


CONSTANTS = {
    "order.last_rollout": by("drop", "the data loader drops an epoch's incomplete batch"),
    "horizon.lr_tick": by("rollout", "the scheduler steps once per update of the actor"),
    "carried.dropout": by("on", "as the model's configuration says"),
}
"""Canonical values that verl's code fixes."""


_LAST_STEP = {
    "pad": "the V1 trainer pads the rollout with rows whose loss mask is 0",
    "error": "the mini-batch iterator asserts whole mini-batches",
    "short": "legacy workers split each replica's rows, the last mini-batch being smaller",
}


def last_step(run: VerlRun) -> str:
    """The treatment of a remainder of completions."""
    return "pad" if run.v1 else "short" if run.legacy else "error"


def _shuffle(run: VerlRun) -> FieldValue:
    key = f"{ACTOR}shuffle"
    if run.legacy and run.engine != "megatron":
        return by("none", "dp_actor does not shuffle")
    return FieldValue("completions" if run[key] else "none", key)


def _micro_batch(run: VerlRun) -> dict[str, FieldValue]:
    if run[DYNAMIC]:
        own, values, name = run[BUDGET], FieldValue(run[BUDGET], BUDGET), "tokens_per_device"
        forward = FORWARD_BUDGET if run[f"{ROLLOUT}log_prob_use_dynamic_bsz"] else None
    else:
        own, name = run.micro, "completions_per_device"
        values = FieldValue(own, MICRO) if run[MICRO] is not None else by(own, "ppo_micro_batch_size / replicas")
        forward = f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"
    if own is None:
        return {}
    found = {f"micro_batch.{name}": values}
    if forward is not None and run[forward] not in (None, own):
        found[f"micro_batch.forward_{name}"] = FieldValue(run[forward], forward)
    return found


def _loss(run: VerlRun, mode: terms.LossMode, aggregation: str) -> dict[str, FieldValue]:
    said = FieldValue(aggregation, f"{ACTOR}loss_agg_mode")
    insisted = mode.insists_on(run.version)
    if insisted in (None, aggregation):
        return _term(run, "policy", said if insisted is None else _always(mode))
    values = _term(run, "policy", _always(mode))
    # Source: verl 0.6.0 to 0.7.1 dp_actor.update_policy, 0.8.0 to 0.9.1 workers/utils/losses.py ppo_loss.
    if run[f"{ACTOR}use_kl_loss"] and run[f"{ACTOR}kl_loss_coef"]:
        values |= _term(run, "kl", said)
    if run[f"{ACTOR}entropy_coeff"]:
        values |= _term(run, "entropy", said)
    return values


def _always(mode: terms.LossMode) -> FieldValue:
    return by(mode.aggregation, f"{mode.name} always aggregates so", f"{ACTOR}policy_loss.loss_mode")


def _term(run: VerlRun, term: str, aggregation: FieldValue) -> dict[str, FieldValue]:
    """The weights of tokens in one term of the loss (policy, kl, entropy)."""
    values = {f"loss.{term}.aggregation": aggregation}
    if aggregation.value == "sequence_sum_over_constant":
        factor, width = f"{ACTOR}loss_scale_factor", "data.max_response_length"
        constant = FieldValue(run[factor], factor)
        if run[factor] is None:
            constant = by(run[width], "loss_scale_factor null: the response's width", width, factor)
        values[f"loss.{term}.constant"] = constant
    if run.legacy and aggregation.value.startswith("sequence") and holds(">=0.6.1", run.version):
        values[f"loss.{term}.count_empty"] = by(False, "agg_loss leaves fully masked sequences out")
    return values


def _advantage(run: VerlRun, estimator: terms.VerlEstimator) -> dict[str, FieldValue]:
    key = "algorithm.norm_adv_by_std_in_grpo"
    scale = FieldValue("group" if run[key] else "none", key)
    if estimator.scale is not None:
        scale = by(estimator.scale, f"{estimator.name} scales so", _ESTIMATOR)
    values = {"advantage.scale": scale}
    if scale.value != "none":
        values["advantage.epsilon"] = by(estimator.epsilon, "fixed in core_algos")
        values["advantage.ddof"] = by(estimator.ddof, "fixed in core_algos")
    return values


def clip_bound(run: VerlRun, side: str) -> tuple[float, str]:
    """The bound that acts on one side, and its key: clip_ratio counts only where the side's own key is null."""
    own = f"{ACTOR}clip_ratio_{side}"
    key = own if run[own] is not None else f"{ACTOR}clip_ratio"
    return run[key], key


def kl_name(native: str) -> str:
    """The canonical name of a native KL estimator."""
    plain = native.removesuffix("+")
    name = terms.KL_ESTIMATORS.get(plain, plain)
    return f"{name}+" if native.endswith("+") and name != "k2" else name


def correction(run: VerlRun) -> str | None:
    """`token_truncate [-, 2.0]; reject token_k1 0.6_1.6`: the weights and the rejection of rollout_correction, which
    bypass_mode leaves out. Source: verl 0.6.1 to 0.9.1 RayPPOTrainer.fit, 0.9.1 PPOTrainer._compute_advantage."""
    prefix = "algorithm.rollout_correction."
    parts = []
    if run[f"{prefix}bypass_mode"]:
        return None
    if (level := run[f"{prefix}rollout_is"]) is not None:
        parts.append(f"{level}_truncate [-, {run[f'{prefix}rollout_is_threshold']}]")
    if (rejection := run[f"{prefix}rollout_rs"]) is not None:
        parts.append(f"{terms.REJECTS}{rejection} {run[f'{prefix}rollout_rs_threshold']}")
    return "; ".join(parts) or None


def old_logprobs(run: VerlRun) -> FieldValue:
    """The source of the ratio's denominator."""
    bypass = "algorithm.rollout_correction.bypass_mode"
    if run[bypass]:
        return FieldValue("sampler", bypass)
    once = run.replicas and run.share and run.completions_per_rollout <= run.share * run.replicas
    if run.legacy and run.engine != "megatron" and holds(">=0.6.0", run.version) and once and run[EPOCHS] == 1:
        return by("detached", "dp_actor takes the current log-probabilities when a rollout is one step")
    return by("rollout_start", "computed once, before the first update")


def _objective(run: VerlRun, mode: terms.LossMode) -> dict[str, FieldValue]:
    values = {
        "surrogate": FieldValue(mode.surrogate, _MODE),
        "ratio_level": by(mode.ratio_level, mode.name, _MODE),
        "old_logprobs": old_logprobs(run),
    }
    if holds(OF_COPIES, run.version):
        values["nonfinite_step"] = by("apply", "dp_actor of 0.2 and 0.3 steps whatever the norm is")
    elif run.engine != "megatron":
        values["nonfinite_step"] = by("skip", "the optimizer step is left out when the norm is not finite")
    if mode.clips:
        values |= {f"clip_{side}": FieldValue(*clip_bound(run, side)) for side in ("low", "high")}
    if mode.dual_clip and not (holds(OF_COPIES, run.version) and f"{ACTOR}clip_ratio_c" not in run.given_keys):
        values["dual_clip"] = FieldValue(run[f"{ACTOR}clip_ratio_c"], f"{ACTOR}clip_ratio_c")
    if (text := correction(run)) is not None:
        values["sampler_correction"] = by(text, "algorithm.rollout_correction", "algorithm.rollout_correction")
    return values | _kl(run)


KL_KEYS: Mapping[str, tuple[str, str, str]] = {
    # place of the penalty -> its switch, coefficient and estimator
    "loss": (f"{ACTOR}use_kl_loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type"),
    "reward": ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"),
}


def _kl(run: VerlRun) -> dict[str, FieldValue]:
    for place, (switch, factor, name) in KL_KEYS.items():
        if run[switch]:
            estimator = kl_name(run[name])
            values = {"kl_placement": _kl_place(run, place, switch), "kl_coefficient": FieldValue(run[factor], factor)}
            values["kl_estimator"] = FieldValue(estimator, name)
            if estimator.startswith("k3"):
                values["kl_clamp"] = by(terms.KL_CLAMP, "fixed in core_algos.kl_penalty")
            return values
    off, switches = "use_kl_loss and use_kl_in_reward are off", tuple(keys[0] for keys in KL_KEYS.values())
    return {"kl_placement": FieldValue("none", switches[0]), "kl_coefficient": by(0.0, off, *switches)}


def _kl_place(run: VerlRun, place: str, switch: str) -> FieldValue:
    if place == "reward" and holds(OF_COPIES, run.version) and switch not in run.given_keys:
        return by(place, "the KL is in the reward wherever use_kl_loss is off", f"{ACTOR}use_kl_loss")
    return FieldValue(place, switch)


def schedule(run: VerlRun) -> FieldValue:
    """The schedule in the words that adapters share: verl's FSDP engines give a cosine its floor by another name."""
    if holds(OF_COPIES, run.version):
        return by("constant", "fsdp_workers of 0.2 and 0.3 has no other schedule")
    key, floor_key, cycles = schedule_key(run), f"{_OPTIM}min_lr_ratio", f"{_OPTIM}num_cycles"
    if key is None:
        return by("constant", "megatron_workers of 0.4.0 has no schedule")
    if run[key] != "cosine" or run.engine != "fsdp":
        return FieldValue(run[key], key)
    floor = run[floor_key] or 0.0
    arguments = {"min_lr_rate": floor, "num_cycles": run[cycles]}
    if floor and any(values.value for values in _warmup(run).values()) and holds("<0.6.0", run.version):
        # Source: verl 0.4.0 to 0.5.0 torch_functional.get_cosine_schedule_with_warmup; 0.6.0 has init_lr_ratio for it.
        arguments[WARMUP_START] = floor
    text = schedule_text("cosine_with_min_lr", arguments)
    if text == run[key]:
        return FieldValue(text, key)
    return by(text, f"{key}, {floor_key}, {cycles}", key, floor_key, cycles)


def schedule_key(run: VerlRun) -> str | None:
    """The key that names the schedule; None where nothing reads one. Source: verl 0.4.0 megatron_workers.py."""
    if run.engine == "torchtitan":
        return f"{_OPTIM}decay_type"
    if run.engine == "megatron":
        return f"{_OPTIM}lr_decay_style" if holds(">=0.4.1", run.version) else None
    older = f"{_OPTIM}warmup_style"
    return older if run[older] is not None else f"{_OPTIM}lr_scheduler_type"


def clip_grad_key(run: VerlRun) -> str:
    """The key that bounds the gradient norm: actor.grad_clip in legacy FSDP workers, optim.clip_grad elsewhere, which
    its deprecated name overwrites. Source: verl 0.6.0 to 0.9.1 OptimizerConfig.__post_init__."""
    if run.legacy and run.engine == "fsdp":
        return f"{ACTOR}grad_clip"
    deprecated = f"{_OPTIM}grad_clip"
    return f"{_OPTIM}clip_grad" if run[deprecated] is None else deprecated


def _argument(run: VerlRun, name: str) -> str:
    """The key of an argument of the optimizer: FSDP's is that of override_optimizer_config where that is given."""
    override = f"{_OPTIM}override_optimizer_config.{name}"
    return f"{_OPTIM}{name}" if run.engine != "fsdp" or run[override] is None else override


def _optimizer(run: VerlRun) -> dict[str, FieldValue]:
    """The optimizer and what it is handed: Megatron takes no betas but those of override_optimizer_config."""
    key, implementation = terms.optimizer_key(run.engine, run.version), f"{_OPTIM}optimizer_impl"
    if key is None:
        optimizer = by("adamw", f"the {run.engine} workers of verl {run.version} have no other")
    elif run.engine == "fsdp" and run[implementation] != terms.TORCH_IMPLEMENTATION:
        name = f"{run[implementation]}.{run[key]}"
        optimizer = by(name, f"{implementation} and optimizer", implementation, key)
    else:
        optimizer = FieldValue(terms.OPTIMIZERS[run.engine].get(run[key], run[key]), key)
    values = {"optimizer": optimizer}
    for canonical, name in (("learning_rate", "lr"), ("weight_decay", "weight_decay")):
        source = _argument(run, name)
        values[canonical] = FieldValue(run[source], source)
    if run.engine == "megatron":
        for at, value in enumerate(terms.BETAS, 1):
            values[f"beta{at}"] = _overridden(run, f"adam_beta{at}", value)
        return values | {"optimizer_epsilon": _overridden(run, "adam_eps", terms.EPSILON)}
    source, eps = _argument(run, "betas"), f"{_OPTIM}eps"
    betas = run[source]
    two = isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, (int, float)) for b in betas)
    values |= {f"beta{at + 1}": by(float(betas[at]) if two else None, source, source) for at in range(2)}
    own = FieldValue(run[eps], eps) if run.engine == "torchtitan" else _overridden(run, "eps", terms.EPSILON)
    return values | {"optimizer_epsilon": own}


def _overridden(run: VerlRun, name: str, default: float) -> FieldValue:
    key = f"{_OPTIM}override_optimizer_config.{name}"
    if run[key] is None:
        return by(default, f"the {run.engine} engine's optimizer, unless {key} says otherwise", key)
    return FieldValue(run[key], key)


def _bound(run: VerlRun) -> FieldValue:
    """The bound of the gradient's norm: Megatron asks whether there is one, the others clip by whatever it is."""
    key = clip_grad_key(run)
    native = run[key]
    return FieldValue(native if run.engine == "megatron" or native is None else canonical_bound(native), key)


def _carried(run: VerlRun) -> dict[str, FieldValue]:
    excluded = "biases_and_norms" if run.engine == "megatron" else "nothing"
    return {
        "lr_schedule": schedule(run),
        "max_gradient_norm": _bound(run),
        "precision": precision(run),
        "weight_decay_excludes": by(excluded, f"the {run.engine} engine decays all but {excluded}"),
        **_optimizer(run),
        **_warmup(run),
    }


def precision(run: VerlRun) -> FieldValue:
    """The precision: bf16 unless a key says otherwise."""
    key = precision_key(run)
    if key is None:
        return by("bf16", f"the {run.engine} engine's default")
    return FieldValue(terms.PRECISIONS.get(run[key], run[key]), key)


def precision_key(run: VerlRun) -> str | None:
    """The key that says in what the actor computes; None where none does. Source: verl 0.4.0 to 0.7.1 fsdp_workers.py
    (`mixed_precision`, else since 0.6.1 `dtype`); 0.9.1 engine/fsdp/transformer_impl.py:391; 0.6.1 to 0.9.1
    McoreEngineConfig.dtype."""
    mixed = f"{ACTOR}fsdp_config.mixed_precision.param_dtype"
    if run.engine == "fsdp" and run[mixed] is not None:
        return mixed
    if run.engine == "fsdp" and run.legacy and holds(">=0.6.1", run.version):
        return f"{ACTOR}fsdp_config.dtype"
    return f"{ACTOR}megatron.dtype" if run.engine == "megatron" and holds(">=0.6.1", run.version) else None


def _warmup(run: VerlRun) -> dict[str, FieldValue]:
    steps, share = f"{_OPTIM}lr_warmup_steps", f"{_OPTIM}lr_warmup_steps_ratio"
    if run.engine == "megatron" and holds("<0.4.1", run.version):
        return {"warmup_steps": by(0.0, "megatron_workers of 0.4.0 has no schedule")}
    # Source: verl 0.7.1 to 0.9.1 workers/engine/veomni: the ratio only.
    count = None if run.engine == "veomni" else run[steps]
    if count is not None and (count > 0 or (count == 0 and run.legacy)):
        return {"warmup_steps": by(float(count), steps, steps)}
    if run[share]:
        return {"warmup_ratio": FieldValue(run[share], share)}
    return {"warmup_steps": by(0.0, f"{steps} and {share} are off", steps, share)}
