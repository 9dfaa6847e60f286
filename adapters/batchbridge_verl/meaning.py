"""What verl's settings mean: a run to a canonical spec, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
    GROUP,
    MICRO,
    MINI,
    NODES,
    PARALLEL,
    PROMPTS,
    Run,
)
from batchbridge_verl.settings import ACTOR, BY_KEY, ENGINE, NEWEST, ROLLOUT, defaults_of, holds

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


@dataclass(frozen=True)
class LossMode:
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


@dataclass(frozen=True)
class Estimator:
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
_KL_NAMES = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
KL_CLAMP = 10.0
"""Bound of k3. Source: verl 0.4.0 to 0.9.1 core_algos.kl_penalty."""

ADAMW = ("adamw", "adam")
"""`optim.optimizer` in lower case; Megatron's adam decays like AdamW. Source: verl 0.6.1 McoreOptimizerConfig."""


@dataclass(frozen=True)
class Told:
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
    if run["algorithm.filter_groups.enable"]:
        told["rollout.group_filter"] = Told("drop_zero_variance", "algorithm.filter_groups.enable")
    if run.entry == "one_step_off":
        told["staleness.mode"] = Told("lookahead", None, "one_step_off_policy generates one rollout ahead")
        told["staleness.maximum"] = Told(1, None, "one_step_off_policy generates one rollout ahead")
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
    key = f"{ACTOR}loss_agg_mode"
    if (insisted := mode.insists_on(run.version)) is not None:
        told = {"loss.policy.aggregation": Told(insisted, None, f"{mode.name} always aggregates so")}
        aggregation = insisted
    else:
        told = {"loss.policy.aggregation": Told(aggregation, key)}
    if aggregation == "sequence_sum_over_constant":
        factor = f"{ACTOR}loss_scale_factor"
        told["loss.policy.constant"] = (
            Told(run["data.max_response_length"], None, "loss_scale_factor null: the response's width")
            if run[factor] is None
            else Told(run[factor], factor)
        )
    if run.legacy and aggregation.startswith("sequence") and holds(">=0.6.1", run.version):
        told["loss.policy.count_empty"] = Told(False, None, "agg_loss leaves fully masked sequences out")
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
    """The schedule in HF's words, with arguments that are not its defaults as JSON."""
    optim = f"{ACTOR}optim."
    if run.engine == "torchtitan":
        return Told(run[f"{optim}decay_type"], f"{optim}decay_type")
    if run.engine == "megatron":
        key = f"{optim}warmup_style" if holds("<0.4.1", run.version) else f"{optim}lr_decay_style"
        return Told(run[key], key)
    older, newer = f"{optim}warmup_style", f"{optim}lr_scheduler_type"
    key = older if run[older] is not None else newer
    arguments = {}
    if run[key] == "cosine" and run.engine == "fsdp":
        if run[f"{optim}min_lr_ratio"]:
            arguments["min_lr_ratio"] = run[f"{optim}min_lr_ratio"]
        if run[f"{optim}num_cycles"] != 0.5:
            arguments["num_cycles"] = run[f"{optim}num_cycles"]
    text = f"{run[key]} {json.dumps(arguments, sort_keys=True)}" if arguments else run[key]
    return Told(text, None if arguments else key, key)


def clip_grad_key(run: Run) -> str:
    """The key that bounds the gradient norm: actor.grad_clip in legacy FSDP workers, optim.clip_grad elsewhere."""
    return f"{ACTOR}grad_clip" if run.legacy and run.engine == "fsdp" else f"{ACTOR}optim.clip_grad"


def _carried(run: Run) -> dict[str, Told]:
    optim = f"{ACTOR}optim."
    optimizer_key = f"{optim}name" if run.engine == "torchtitan" else f"{optim}optimizer"
    optimizer = str(run[optimizer_key]).lower()
    betas = run[f"{optim}betas"]
    two = isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, (int, float)) for b in betas)
    told = {
        "learning_rate": Told(run[f"{optim}lr"], f"{optim}lr"),
        "lr_schedule": schedule(run),
        "optimizer": Told("adamw" if optimizer in ADAMW else optimizer, optimizer_key),
        "beta1": Told(float(betas[0]) if two else None, None, f"{optim}betas"),
        "beta2": Told(float(betas[1]) if two else None, None, f"{optim}betas"),
        "optimizer_epsilon": Told(run[f"{optim}eps"], f"{optim}eps"),
        "weight_decay": Told(run[f"{optim}weight_decay"], f"{optim}weight_decay"),
        "max_gradient_norm": Told(run[clip_grad_key(run)], clip_grad_key(run)),
        "dropout": Told("on", None, "as the model's configuration says"),
        "max_prompt_tokens": Told(run["data.max_prompt_length"], "data.max_prompt_length"),
        "max_completion_tokens": Told(run["data.max_response_length"], "data.max_response_length"),
        "temperature": Told(run[f"{ROLLOUT}temperature"], f"{ROLLOUT}temperature"),
        "top_p": Told(run[f"{ROLLOUT}top_p"], f"{ROLLOUT}top_p"),
        "top_k": Told(run[f"{ROLLOUT}top_k"], f"{ROLLOUT}top_k"),
        "precision": precision(run),
    }
    if run.engine in ("fsdp", "megatron"):
        excluded = "nothing" if run.engine == "fsdp" else "biases_and_norms"
        told["weight_decay_excludes"] = Told(excluded, None, f"the {run.engine} engine decays all but {excluded}")
    told |= _warmup(run)
    return {f"carried.{name}": entry for name, entry in told.items()}


def precision(run: Run) -> Told:
    """bf16 unless FSDP's mixed_precision says otherwise. Source: verl 0.9.1 engine/fsdp/transformer_impl.py:391."""
    key = f"{ACTOR}fsdp_config.mixed_precision.param_dtype"
    names = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
    if run.engine == "fsdp" and run[key] is not None:
        return Told(names.get(run[key], run[key]), key)
    return Told("bf16", None, f"the {run.engine} engine's default")


def _warmup(run: Run) -> dict[str, Told]:
    steps, share = f"{ACTOR}optim.lr_warmup_steps", f"{ACTOR}optim.lr_warmup_steps_ratio"
    count = run[steps]
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
    policy = {name.removeprefix("policy."): value for name, value in groups["loss"].items()}
    return Spec(
        topology=Topology(**groups["topology"]),
        rollout=Rollout(**groups["rollout"]),
        optimizer_step=OptimizerStep(**groups["optimizer_step"]),
        loss=Loss(policy=LossTerm(**policy)),
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
    engine = _engine_for(spec)
    values: dict[str, Any] = {ENGINE: engine} if engine != "fsdp" else {}
    for part in (_write_topology, _write_sizes, _write_loss, _write_objective, _write_carried):
        part(spec, values, problems)
    if not holds(">=0.9.0", version):
        values.pop("trainer.use_v1", None)
    known = defaults_of(version, engine)
    older = f"{ACTOR}optim.warmup_style"
    for newer in (f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.lr_decay_style"):
        if newer in values and newer not in known and older in known:
            values[older] = values.pop(newer)
    unknown = [key for key in values if key not in known and key != ENGINE and "mixed_precision" not in key]
    for key in unknown:
        absent = BY_KEY[key].absent if key in BY_KEY else None
        if values[key] is None or values[key] == absent or key == f"{ACTOR}optim.eps":
            del values[key]
        elif key not in _READ_THOUGH_NOT_SHIPPED:
            problems.append(f"{key} is no setting of verl {version} with the {engine} engine")
    return values


_READ_THOUGH_NOT_SHIPPED = ("data.seed",)
"""Keys that take a `+` on a command line. Source: verl 0.4.0 to 0.6.0 main_ppo.create_rl_sampler, data_config.get."""


def _engine_for(spec: Spec) -> str:
    topology = spec.topology
    split = topology.tensor_parallel > 1 or topology.pipeline_parallel > 1
    return "megatron" if split or spec.carried.weight_decay_excludes == "biases_and_norms" else "fsdp"


def nodes_and_gpus(world: int) -> tuple[int, int]:
    """Nodes and GPUs per node (at most 8, as many as divide) of `world` devices."""
    gpus = next(size for size in range(min(world, 8), 0, -1) if world % size == 0)
    return world // gpus, gpus


def _write_topology(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    topology = spec.topology
    if problems.need(topology.world_size >= 1, f"topology.world_size = {topology.world_size}: at least 1"):
        values[NODES], values["trainer.n_gpus_per_node"] = nodes_and_gpus(topology.world_size)
    sizes = (topology.tensor_parallel, topology.pipeline_parallel, topology.context_parallel)
    for key, size in zip(PARALLEL[_engine_for(spec)], sizes, strict=True):
        if key is not None:
            values[key] = size
    if topology.context_parallel > 1 and _engine_for(spec) == "fsdp":
        values["actor_rollout_ref.model.use_remove_padding"] = True
    values[f"{ROLLOUT}name"] = "vllm"
    values[f"{ROLLOUT}tensor_model_parallel_size"] = 1


def _write_sizes(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    rollout, step, micro = spec.rollout, spec.optimizer_step, spec.micro_batch
    group, completions = rollout.completions_per_prompt, step.completions_per_step
    values[GROUP] = group
    if problems.need(rollout.prompts_per_rollout is not None, "rollout.prompts_per_rollout is open: verl needs it"):
        values[PROMPTS] = rollout.prompts_per_rollout
    if problems.need(completions is not None, "optimizer_step.completions_per_step is open: verl needs it"):
        assert completions is not None
        below = completions // group * group if group else 0
        if problems.need(
            group > 0 and completions % group == 0,
            f"optimizer_step.completions_per_step = {completions}: verl counts whole groups of {group}; nearest: "
            f"{f'{below} or ' if below else ''}{below + group}",
        ):
            values[MINI] = completions // group
    problems.need(
        spec.staleness.mode == "sync",
        f"staleness.mode = {spec.staleness.mode}: settings of main_ppo say sync; one rollout ahead is another program, "
        "verl.experimental.one_step_off_policy.main_ppo",
    )
    values[EPOCHS] = step.passes_per_rollout
    values[f"{ACTOR}shuffle"] = step.rollout_shuffle == "completions"
    if micro.tokens_per_device is not None:
        values[DYNAMIC], values[BUDGET] = True, micro.tokens_per_device
        if micro.forward_tokens_per_device is not None:
            values[f"{ROLLOUT}log_prob_max_token_len_per_gpu"] = micro.forward_tokens_per_device
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
    values["data.shuffle"] = spec.order.prompt_shuffle != "none"
    values["data.seed"] = None if spec.order.seed == TORCH_SEED else spec.order.seed
    problems.need(spec.order.seed is not None, "order.seed is open: verl always has one")
    if spec.order.last_optimizer_step == "error":
        values["trainer.use_v1"] = False
    horizon = spec.horizon
    problems.need(horizon.optimizer_steps is None, "horizon.optimizer_steps: verl counts rollouts or epochs")
    if horizon.rollouts is not None:
        values["trainer.total_training_steps"] = horizon.rollouts
    if horizon.epochs is not None and problems.need(
        horizon.epochs == int(horizon.epochs), f"horizon.epochs = {horizon.epochs}: verl takes whole epochs"
    ):
        values["trainer.total_epochs"] = int(horizon.epochs)


def _write_loss(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    policy = spec.loss.policy
    native = {canonical: name for name, canonical in AGGREGATIONS.items()}
    if problems.need(
        policy.aggregation in native, f"loss.policy.aggregation = {policy.aggregation}: verl has {', '.join(native)}"
    ):
        values[f"{ACTOR}loss_agg_mode"] = native[policy.aggregation]
    if policy.constant is not None:
        values[f"{ACTOR}loss_scale_factor"] = policy.constant
    advantage = spec.advantage
    names = list(_estimators_for(advantage))
    if problems.need(
        bool(names), f"advantage.baseline = {advantage.baseline} with scale = {advantage.scale}: verl has none such"
    ):
        values["algorithm.adv_estimator"] = names[0]
        values["algorithm.norm_adv_by_std_in_grpo"] = advantage.scale == "group"
        if names[0] == "gae":
            for key in ("ppo_micro_batch_size_per_gpu",):
                values[f"critic.{key}"] = values.get(MICRO)


def _estimators_for(advantage: Advantage) -> Iterator[str]:
    for row in ESTIMATORS.values():
        scales = ("group", "none") if row.scale is None else (row.scale,)
        if row.baseline == advantage.baseline and advantage.scale in scales:
            yield row.name


_CORRECTION = re.compile(r"(?:(\w+)_truncate \[-, (\S+)\])?(?:; )?(?:reject (\S+) (\S+))?")


def _write_objective(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    surrogate, level = objective.surrogate or "ppo", objective.ratio_level
    modes = [mode for mode in LOSS_MODES.values() if mode.surrogate == surrogate and level in (None, mode.ratio_level)]
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
            plain in _KL_NAMES, f"objective.kl_estimator = {objective.kl_estimator}: verl has {', '.join(_KL_NAMES)}"
        ):
            values[name] = _KL_NAMES[plain] + ("+" if objective.kl_estimator.endswith("+") else "")


def _write_carried(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    carried, optim = spec.carried, f"{ACTOR}optim."
    for name, key in (
        ("learning_rate", f"{optim}lr"),
        ("optimizer_epsilon", f"{optim}eps"),
        ("weight_decay", f"{optim}weight_decay"),
        ("max_gradient_norm", f"{optim}clip_grad"),
        ("max_prompt_tokens", "data.max_prompt_length"),
        ("max_completion_tokens", "data.max_response_length"),
        ("temperature", f"{ROLLOUT}temperature"),
        ("top_p", f"{ROLLOUT}top_p"),
        ("top_k", f"{ROLLOUT}top_k"),
    ):
        if getattr(carried, name) is not None:
            values[key] = getattr(carried, name)
    if carried.beta1 is not None or carried.beta2 is not None:
        values[f"{optim}betas"] = [
            0.9 if carried.beta1 is None else carried.beta1,
            0.999 if carried.beta2 is None else carried.beta2,
        ]
    megatron = _engine_for(spec) == "megatron"
    if carried.lr_schedule is not None:
        name, _, arguments = carried.lr_schedule.partition(" ")
        allowed = ("constant", "linear", "cosine", "inverse-square-root", "WSD") if megatron else ("constant", "cosine")
        problems.need(name in allowed, f"carried.lr_schedule = {name}: verl's engine has {', '.join(allowed)}")
        values[f"{optim}{'lr_decay_style' if megatron else 'lr_scheduler_type'}"] = name
        if arguments:
            _write_schedule_arguments(arguments, values, problems)
    if carried.warmup_ratio:
        values[f"{optim}lr_warmup_steps_ratio"] = carried.warmup_ratio
        problems.need(not carried.warmup_steps, "carried.warmup_ratio and warmup_steps are both given")
    elif carried.warmup_steps:
        whole = carried.warmup_steps == int(carried.warmup_steps)
        if problems.need(whole, f"carried.warmup_steps = {carried.warmup_steps}: verl takes whole rollouts"):
            values[f"{optim}lr_warmup_steps"] = int(carried.warmup_steps)
    if carried.optimizer is not None:
        names = {"adamw": "adam", "sgd": "sgd"} if megatron else {"adamw": "AdamW", "sgd": "SGD"}
        if problems.need(
            carried.optimizer in names, f"carried.optimizer = {carried.optimizer}: verl has {', '.join(names)}"
        ):
            values[f"{optim}optimizer"] = names[carried.optimizer]
    if carried.precision not in (None, "bf16") and problems.need(
        not megatron and carried.precision in ("fp32", "fp16"), f"carried.precision = {carried.precision}"
    ):
        for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            values[f"{ACTOR}fsdp_config.mixed_precision.{part}"] = carried.precision


def _write_schedule_arguments(text: str, values: dict[str, Any], problems: Problems) -> None:
    try:
        arguments = json.loads(text)
        unknown = set(arguments) - {"min_lr_ratio", "num_cycles"}
    except (ValueError, TypeError):
        problems.append(f"carried.lr_schedule: {text} is no JSON mapping")
        return
    problems.need(not unknown, f"carried.lr_schedule: verl has no arguments {', '.join(sorted(unknown))}")
    for name in set(arguments) - unknown:
        values[f"{ACTOR}optim.{name}"] = arguments[name]
