"""What SkyRL's settings mean together. Source: skyrl 0.3.0, the symbols named at each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchbridge.kit.values import Told
from batchbridge_skyrl.settings import (
    ALGORITHM,
    ASYNC,
    BETAS,
    BUDGET,
    BY_STD,
    CONTEXT,
    CORRECTION,
    ENTROPY,
    ENTROPY_COEF,
    ENTRY,
    ESTIMATOR,
    FORWARD,
    GROUP,
    INPUT_TOKENS,
    KL,
    KL_COEF,
    KL_LOSS,
    KL_REWARD,
    LOSS,
    MASKED,
    MAX_SEQ,
    MEGATRON,
    MICRO,
    MINI,
    NEW_TOKENS,
    PIPELINE,
    REDUCTION,
    SAMPLES,
    SAMPLING,
    SCHEDULER,
    STEPWISE,
    STRATEGY,
    TENSOR,
    TURNS,
    ULYSSES,
    WARMUP,
)

Native = Mapping[str, Any]
MAIN = "skyrl.train.entrypoints.main_base"
FULLY_ASYNC = "examples.train.fully_async.main_fully_async"
LOOKAHEAD = "examples.train.async.main_async"
ENTRIES: Mapping[str, str] = {
    MAIN: "",
    FULLY_ASYNC: "",
    LOOKAHEAD: "",
    "examples.train.algorithms.dapo.main_dapo": "overlong_punishment",
    "examples.train.algorithms.dapo.main_dapo_fully_async": "overlong_punishment",
    "examples.train.tis_correction.main_tis_dapo": "overlong_punishment",
    "examples.train.algorithms.custom_advantage_estimator.main_custom_adv_est": "",
    "examples.train.algorithms.custom_policy_loss.main_custom_policy_loss": "",
    "examples.train.on_policy_distillation.main_on_policy_distill": "teacher_kl",
    "examples.train.geometry3k.geometry3k_entrypoint": "",
    "examples.train.llm_as_a_judge.main_llm_judge": "",
    "examples.train.mini_swe_agent.main_mini_swe": "",
    "examples.train.multiply.main_multiply": "",
    "examples.train.rlm.main_rlm": "",
    "examples.train.visgym.entrypoint": "",
    "examples.train_integrations.harbor.entrypoints.main_harbor": "",
    "examples.train_integrations.harbor.entrypoints.main_harbor_fully_async": "",
    "examples.train_integrations.openenv.entrypoints.main_openenv": "",
    "examples.train_integrations.openreward.entrypoints.main_openreward": "",
    "examples.train_integrations.verifiers.entrypoints.main_verifiers": "",
}
"""Modules that start a trainer, and what their own code does with rewards; empty where only environments, generators,
estimators or losses are their own. Source: the modules' own files in skyrl 0.3.0."""


class Loss(NamedTuple):
    """One `policy_loss_type`: the canonical surrogate, the level of its ratio, the settings of its clip bounds, and
    where the ratio's denominator comes from."""

    surrogate: str
    level: str | None = "token"
    low: str | None = f"{ALGORITHM}.eps_clip_low"
    high: str | None = f"{ALGORITHM}.eps_clip_high"
    old: str = "rollout_start"


_CISPO, _DPPO = f"{ALGORITHM}.cispo.cispo_eps_clip", f"{ALGORITHM}.dppo.delta"
LOSSES = {
    "regular": Loss("ppo"),
    "dual_clip": Loss("ppo"),
    "gspo": Loss("ppo", "sequence"),
    "cispo": Loss("cispo", "token", f"{_CISPO}_low", f"{_CISPO}_high"),
    "sapo": Loss("sapo", "token", None, None),
    "clip_cov": Loss("clip_cov"),
    "kl_cov": Loss("kl_cov", "token", None, None),
    "rollout_is": Loss("rollout_is", old="sampler"),
    "dppo": Loss("dppo", "token", f"{_DPPO}_low", f"{_DPPO}_high", "sampler"),
    "importance_sampling": Loss("importance_sampling", "token", None, None),
    "cross_entropy": Loss("cross_entropy", None, None, None),
}
"""Source: ppo_utils.PolicyLossRegistry.repopulate_registry and the functions that it names. gspo is PPO's surrogate with
the ratio of whole sequences; dppo has a name for each divergence."""
REDUCTIONS = {
    "token_mean": "token_mean",
    "token_mean_legacy": "token_mean",
    "sequence_mean": "sequence_mean",
    "seq_mean_token_sum_norm": "sequence_sum_over_constant",
    "prompt_mean": "prompt_mean",
}
"""Source: ppo_utils.apply_loss_reduction_to_advantages_minibatch."""
ESTIMATORS = {
    "grpo": ("group_mean", None),
    "rloo": ("leave_one_out", "none"),
    "reinforce++": ("none", "batch"),
    "gae": ("value", "batch"),
    "maxrl": ("group_mean", "none"),
}
"""Baseline and scale; None: `grpo_norm_by_std` says. Source: ppo_utils.compute_*_advantage."""
DEFAULTS = {
    "sapo": {f"{ALGORITHM}.sapo.tau_pos": 1.0, f"{ALGORITHM}.sapo.tau_neg": 1.05},
    "clip_cov": {
        f"{ALGORITHM}.clip_cov.clip_ratio": 0.0002,
        f"{ALGORITHM}.clip_cov.clip_cov_lb": 1.0,
        f"{ALGORITHM}.clip_cov.clip_cov_ub": 5.0,
    },
    "kl_cov": {f"{ALGORITHM}.kl_cov.kl_cov_frac": 0.2, f"{ALGORITHM}.kl_cov.ppo_kl_coef": 1.0},
}
"""A loss's own numbers that the schema has no field for, at their defaults."""


def derive(native: Native) -> dict[str, Told]:
    """Canonical values by field."""
    told = {
        "optimizer_step.completions_per_step": Told(
            native[MINI] * native[GROUP], None, "prompts of a mini-batch x completions", (MINI, GROUP)
        ),
        "open_terms": Told(tuple(sorted(open_terms(native))), None, "named by the settings", (ESTIMATOR, LOSS)),
    }
    parts = (_topology, _micro_batch, _loss, _advantage, _objective, _sampled, _staleness, _carried)
    return told | {path: entry for part in parts for path, entry in part(native).items()}


def is_async(native: Native) -> bool:
    """Whether FullyAsyncRayPPOTrainer trains."""
    return bool(native[f"{ASYNC}.enabled"]) and native[ENTRY] not in (MAIN, LOOKAHEAD)


def data_parallel(native: Native, devices: int, model: str = "policy") -> int:
    """Replicas of a model. Source: utils.validate_batch_sizes."""
    keys = (TENSOR, PIPELINE, CONTEXT) if native[STRATEGY] == "megatron" else (ULYSSES,)
    for key in keys:
        devices //= native[key.replace("policy", model)]
    return devices


def _topology(native: Native) -> dict[str, Told]:
    if native[STRATEGY] != "megatron":
        return {"topology.context_parallel": Told(native[ULYSSES], ULYSSES)}
    keys = {"tensor": TENSOR, "pipeline": PIPELINE, "context": CONTEXT}
    return {f"topology.{name}_parallel": Told(native[key], key) for name, key in keys.items()}


def _micro_batch(native: Native) -> dict[str, Told]:
    if native[BUDGET] > 0:  # one sequence that is longer makes a micro-batch of its own
        note = "a longer completion is a micro-batch of its own"
        return {
            "micro_batch.tokens_per_device": Told(native[BUDGET], BUDGET),
            "micro_batch.cap": Told("soft", None, note, (BUDGET,)),
        }
    told = {"micro_batch.completions_per_device": Told(native[MICRO], MICRO)}
    if native[FORWARD] != native[MICRO]:
        told["micro_batch.forward_completions_per_device"] = Told(native[FORWARD], FORWARD)
    return told


def _loss(native: Native) -> dict[str, Told]:
    """Policy weights are made once for the step; KL and entropy are averaged by micro-batch.

    Source: trainer._normalize_advantages, worker.PolicyWorkerBase._forward_backward_micro.
    """
    told = {"loss.policy.aggregation": Told(REDUCTIONS[native[REDUCTION]], REDUCTION)}
    if native[REDUCTION] == "token_mean_legacy":
        told["loss.policy.denominator_scope"] = Told("micro_batch", REDUCTION)
    if native[REDUCTION] == "seq_mean_token_sum_norm":
        told["loss.policy.constant"] = Told(native[MAX_SEQ], MAX_SEQ)
    if native[KL_LOSS] and native[KL_COEF] and native[REDUCTION] != "sequence_mean":
        told["loss.kl.aggregation"] = Told("sequence_mean", None, "KL is a mean over completions", (KL_LOSS,))
    if native[ENTROPY] and native[ENTROPY_COEF]:
        note = "entropy is a mean over a micro-batch's tokens"
        told["loss.entropy.aggregation"] = Told("token_mean", None, note, (ENTROPY,))
        told["loss.entropy.denominator_scope"] = Told("micro_batch", None, note, (ENTROPY,))
        if told["loss.policy.aggregation"].value == "token_mean" and "loss.policy.denominator_scope" in told:
            del told["loss.entropy.aggregation"], told["loss.entropy.denominator_scope"]  # as the policy's
    return told


def _advantage(native: Native) -> dict[str, Told]:
    name = native[ESTIMATOR]
    baseline, scale = ESTIMATORS.get(name, ("none", "none"))
    if name == "grpo":
        scale = "group" if native[BY_STD] else "none"
        if native[GROUP] == 1:
            note = "a group of one has mean 0 and deviation 1"
            keys = (ESTIMATOR, GROUP)
            return {f"advantage.{field}": Told("none", None, note, keys) for field in ("baseline", "scale")}
    told = {
        "advantage.baseline": Told(baseline, ESTIMATOR),
        "advantage.scale": Told(scale, BY_STD if name == "grpo" else ESTIMATOR),
    }
    if scale != "none":
        told["advantage.ddof"] = Told(1, None, "torch.std", (ESTIMATOR,))
    if scale == "group":
        told["advantage.epsilon"] = Told(1e-6, None, "fixed in compute_grpo_outcome_advantage", (ESTIMATOR,))
    return told


def _objective(native: Native) -> dict[str, Told]:
    loss = LOSSES.get(native[LOSS], Loss(native[LOSS], None, None, None))
    kind = f"{ALGORITHM}.dppo.dppo_type"
    surrogate = f"dppo_{native[kind].removeprefix('binary_')}" if native[LOSS] == "dppo" else loss.surrogate
    told = {
        "surrogate": Told(surrogate, LOSS, *(("dppo_type", (kind,)) if native[LOSS] == "dppo" else ())),
        "ratio_level": Told(loss.level, LOSS),
        "old_logprobs": Told(loss.old, LOSS),
        "entropy_coefficient": Told(native[ENTROPY_COEF], ENTROPY_COEF, "use_entropy_loss", (ENTROPY,))
        if native[ENTROPY]
        else Told(0.0, None, "use_entropy_loss is off", (ENTROPY,)),
        "kl_placement": Told(
            "loss" if native[KL_LOSS] else "reward" if native[KL_REWARD] else "none", KL_LOSS
        )._replace(others=(KL_REWARD,)),
        "kl_coefficient": Told(0.0, None, "use_kl_loss and use_kl_in_reward are off", (KL_LOSS, KL_REWARD)),
    }
    for side, key in (("low", loss.low), ("high", loss.high)):
        if key is not None:
            told[f"clip_{side}"] = Told(native[key], key)
    if native[LOSS] == "dual_clip":
        told["dual_clip"] = Told(native[f"{ALGORITHM}.clip_ratio_c"], f"{ALGORITHM}.clip_ratio_c")
    if native[KL_LOSS] or native[KL_REWARD]:
        told["kl_coefficient"] = Told(native[KL_COEF], KL_COEF)
        told["kl_estimator"] = Told(native[KL], KL)
        if native[KL] == "k3":  # Source: ppo_utils.compute_approx_kl
            told["kl_log_ratio_clamp"] = Told(20.0, None, "fixed in compute_approx_kl", (KL,))
            told["kl_clamp"] = Told(10.0, None, "fixed in compute_approx_kl", (KL,))
    if native[STRATEGY] != "megatron":  # Source: FSDPStrategy.optimizer_step
        told["nonfinite_step"] = Told("skip", None, "the step is left out when the norm is not finite", (STRATEGY,))
    keys = tuple(key for key in native if key.startswith(f"{CORRECTION}."))
    told["sampler_correction"] = Told("; ".join(corrections(native)) or None, None, CORRECTION, keys)
    return {f"objective.{name}": entry for name, entry in told.items()}


def corrections(native: Native) -> Iterator[str]:
    """The off-policy correction in the words that adapters share.

    Source: off_policy_correction_utils; utils.validate_cfg for the deprecated use_tis.
    """
    if native[LOSS] in ("clip_cov", "kl_cov", "importance_sampling", "cross_entropy"):
        return
    said = {key.rpartition(".")[2]: value for key, value in native.items() if key.startswith(f"{CORRECTION}.")}
    if native[f"{ALGORITHM}.use_tis"]:
        said |= {"tis_ratio_type": "token", "token_tis_ratio_clip_high": native[f"{ALGORITHM}.tis_imp_ratio_cap"]}
    if (level := said["tis_ratio_type"]) is not None:
        yield f"{level}_truncate [-, {said[f'{level}_tis_ratio_clip_high']}]"
    if (metric := said["sequence_mask_metric"]) is not None:
        name = "geo" if metric == "geometric" else metric
        word = "geometric_mask" if metric == "geometric" else "mask"
        yield f"sequence_{word} [{said[f'{name}_mask_low']}, {said[f'{name}_mask_high']}]"
    low, high = said["token_mask_is_threshold_low"], said["token_mask_is_threshold_high"]
    if None not in (low, high):
        yield f"token_mask [{low}, {high}]"
    low, high = (said[f"outlier_token_is_threshold_{side}"] for side in ("low", "high"))
    if (low, high) != (None, None):
        yield f"sequence_outlier_mask [{'-' if low is None else low}, {'-' if high is None else high}]"


def _sampled(native: Native) -> dict[str, Told]:
    keys = (SAMPLING, MASKED, f"{ASYNC}.sample_full_batch")
    dropped = native[SAMPLING] == "filter" or (is_async(native) and native[keys[2]])
    group_filter = "drop_zero_variance" if dropped else "mask_zero_variance" if native[MASKED] else "none"
    told = {"rollout.group_filter": Told(group_filter, None, "the filters that are on", keys)}
    if native[STEPWISE]:
        told["rollout.sample_unit"] = Told("turn", STEPWISE)
    elif native[TURNS] > 1:
        told["rollout.sample_unit"] = Told("trajectory", TURNS)
    else:
        told["carried.max_completion_tokens"] = Told(native[NEW_TOKENS], NEW_TOKENS)
    if native[TURNS] > 1:
        total = native[INPUT_TOKENS] + native[NEW_TOKENS]
        told["carried.max_total_tokens"] = Told(
            total, None, "the last turn's input and output", (INPUT_TOKENS, NEW_TOKENS)
        )
    return told


def _staleness(native: Native) -> dict[str, Told]:
    if native[ENTRY] == LOOKAHEAD:
        return {
            "staleness.mode": Told("lookahead", ENTRY),
            "staleness.maximum": Told(1, None, "the generator is one rollout ahead", (ENTRY,)),
        }
    if not is_async(native):
        return {}
    key = f"{ASYNC}.max_staleness_steps"
    return {"staleness.mode": Told("bounded", f"{ASYNC}.enabled"), "staleness.maximum": Told(native[key], key)}


def _carried(native: Native) -> dict[str, Told]:
    told = {
        "beta1": Told(native[BETAS][0], None, "the first of adam_betas", (BETAS,)),
        "beta2": Told(native[BETAS][1], None, "the second of adam_betas", (BETAS,)),
    }
    if native[SCHEDULER] == "constant":
        told["warmup_steps"] = Told(0.0, None, "transformers' constant has no warm-up", (SCHEDULER, WARMUP))
    megatron = native[STRATEGY] == "megatron"
    excludes = "biases_and_norms" if megatron else "nothing"
    told["weight_decay_excludes"] = Told(excludes, None, "the optimizer's groups", (STRATEGY,))
    if megatron and native[f"{MEGATRON}.moe_router_load_balancing_type"] != "none":
        key = f"{MEGATRON}.moe_aux_loss_coeff"
        told["router_loss_coefficient"] = Told(native[key], key)
    return {f"carried.{name}": entry for name, entry in told.items()}


def open_terms(native: Native) -> Iterator[str]:
    """What the schema has no word for, by name."""
    entry, estimator, loss = native[ENTRY], native[ESTIMATOR], native[LOSS]
    if entry is not None and (term := ENTRIES.get(entry, f"code of {entry}")):
        yield f"rollout: {term}"
    if estimator not in ESTIMATORS or estimator == "maxrl":
        yield f"advantage: {estimator}"
    if native[f"{ALGORITHM}.advantage_batch_normalize"]:
        yield "advantage: batch_normalize"
    for name in ("gamma", "lambd")[: {"gae": 2, "reinforce++": 1}.get(estimator, 0)]:
        if (value := native[f"{ALGORITHM}.{name}"]) != 1.0:
            yield f"advantage: {name} {value}"
    if loss not in LOSSES:
        yield f"objective: {loss}"
    for key, default in DEFAULTS.get(loss, {}).items():
        if native[key] != default:
            yield f"objective: {key.removeprefix(f'{ALGORITHM}.')} {native[key]}"
    if native[KL_REWARD] and native[f"{ALGORITHM}.kl_ctrl.type"] == "adaptive":
        yield "objective: adaptive_kl"
    temperature = native[f"{ALGORITHM}.temperature"]
    if temperature not in (None, native[f"{SAMPLES}.temperature"]):
        yield f"objective: temperature {temperature}"
    if native["trainer.update_ref_every_epoch"] and (native[KL_LOSS] or native[KL_REWARD]):
        yield "carried: reference_every_epoch"
    for name, off in (("min_p", 0.0), ("repetition_penalty", 1.0)):
        if (value := native[f"{SAMPLES}.{name}"]) != off:
            yield f"carried: {name} {value}"
    if native["generator.zero_reward_on_non_stop"]:
        yield "rollout: zero_reward_on_non_stop"
    if native[REDUCTION] == "token_mean_legacy" and native[BUDGET] > 0:
        yield "loss: token_mean over slices of micro_train_batch_size_per_gpu"
