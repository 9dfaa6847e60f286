"""Rules about what verl never reports: settings not read, rows padded, orders and scopes that hang on the split;
and what runs but has no canonical words."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.rule_table import NOTE, OPEN, SILENT, STANDING, WRONG, Rules, says
from batchbridge_verl.meaning import clip_grad_key
from batchbridge_verl.rules.row import AGGREGATION, BALANCE, BYPASS, CORRECTION, ESTIMATOR, FILTERED, MODE, OF_V1, V1
from batchbridge_verl.rules.ways_out import either, fix, setting
from batchbridge_verl.run import DYNAMIC, GROUP, MICRO, VerlRun
from batchbridge_verl.settings import ACTOR, PREFIX_GROUPER, ROLLOUT, holds
from batchbridge_verl.terms import AGGREGATIONS, ESTIMATORS, LOSS_MODES

_FACTOR, _CLIP = f"{ACTOR}loss_scale_factor", f"{ACTOR}clip_ratio"
_CLIP_SIDES = (f"{_CLIP}_low", f"{_CLIP}_high")
_NORMS = (f"{ACTOR}grad_clip", f"{ACTOR}optim.clip_grad")
_IN_LOSS, _IN_REWARD, _CONTROL = f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.type"
_IS, _RS, _LOSS_TYPE = f"{CORRECTION}rollout_is", f"{CORRECTION}rollout_rs", f"{CORRECTION}loss_type"
_DTYPE, _MIXED = f"{ACTOR}fsdp_config.dtype", f"{ACTOR}fsdp_config.mixed_precision"
_PACKED, _FUSED = "actor_rollout_ref.model.use_remove_padding", "actor_rollout_ref.model.use_fused_kernels"
_TOP_P, _TOP_K, _NAME = f"{ROLLOUT}top_p", f"{ROLLOUT}top_k", f"{ROLLOUT}name"
_SCORED, _LOG_PROBS_MODE = f"{ROLLOUT}calculate_log_probs", f"{ROLLOUT}logprobs_mode"

RULES = Rules[VerlRun]()


def _limits(run: VerlRun) -> str | None:
    """The limits of sampling whose log-probabilities the policy takes whole, where the two are compared."""
    compared = run[BYPASS] or (run[_SCORED] and (run[_IS] is not None or run[_RS] is not None))
    if not compared or run[_NAME] != "vllm" or run[_LOG_PROBS_MODE] != "processed_logprobs":
        return None
    said = [f"{_TOP_P} = {run[_TOP_P]}"] if run[_TOP_P] < 1 else []
    said += [f"{_TOP_K} = {run[_TOP_K]}"] if run[_TOP_K] > 0 else []
    return ", ".join(said) or None


def _of_sequences(run: VerlRun) -> bool:
    """Whether a completion has one weight, the product over its tokens."""
    return not run[BYPASS] and (run[_IS] == "sequence" or str(run[_RS] or "").startswith("seq"))


def _no_limits(run: VerlRun) -> tuple[Fix, ...]:
    limits = {_TOP_P: 1.0, _TOP_K: -1}
    return (
        fix({key: none for key, none in limits.items() if run[key] != none and not (key == _TOP_K and run[key] == 0)}),
    )


_LIMITED = (_TOP_P, _TOP_K, _LOG_PROBS_MODE, _IS, _RS, BYPASS)
_RENORMALISED = "vLLM's log-probabilities are those of the tokens that the limit leaves"
_RENORMALISED_SOURCE = "verl 0.7.0 to 0.9.1 vllm_async_server.py (logprobs_mode), rollout_correction of the trainer"


@RULES.add(SILENT, "BB-VERL-102", *_LIMITED, fixes=_no_limits)
@says(_RENORMALISED, _RENORMALISED_SOURCE, ">=0.7.0")
def _limited_tokens(run: VerlRun) -> str | None:
    if (said := _limits(run)) is None or _of_sequences(run):
        return None
    return (
        f"{said}: rollout_correction's ratio of each token has the probability that the limit leaves to it as a factor"
    )


@RULES.add(WRONG, "BB-VERL-103", *_LIMITED, fixes=_no_limits)
@says(_RENORMALISED, _RENORMALISED_SOURCE, ">=0.7.0")
def _limited_sequences(run: VerlRun) -> str | None:
    if (said := _limits(run)) is None or not _of_sequences(run):
        return None
    return (
        f"{said} with a rollout_correction of sequences: the probability that the limit leaves, of each token, is a "
        f"factor of a completion's ratio: 0.95 in 256 tokens is {0.95**256:.0e}"
    )


@RULES.add(OPEN, "BB-VERL-025", MODE)
@says("the loss of rollout_correction", "verl 0.9.1 core_algos.compute_policy_loss_bypass_mode")
def _mode_inexpressible(run: VerlRun) -> str | None:
    if run.surrogate not in ("bypass_mode", "rollout_correction"):
        return None
    return (
        f"{MODE} = {run.surrogate} has no canonical form: its factors and rejections follow the log-probabilities of "
        f"each micro-batch; {MODE} = vanilla with {BYPASS} trains PPO's loss on the sampler's log-probabilities"
    )


def _insists(run: VerlRun) -> bool:
    """Whether the policy loss takes its own mean, whatever loss_agg_mode says."""
    return LOSS_MODES.get(run.surrogate, LOSS_MODES["vanilla"]).insists_on(run.version) is not None


def _longest_response(run: VerlRun) -> tuple[Fix, ...]:
    return setting(_FACTOR, run["data.max_response_length"])(run)


@RULES.add(SILENT, "BB-VERL-027", _FACTOR, AGGREGATION, fixes=_longest_response)
@says("agg_loss divides by loss_mask.shape[-1]", "verl 0.9.1 core_algos.py:1190")
def _width_constant(run: VerlRun) -> str | None:
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or run[_FACTOR] is not None:
        return None
    if run.legacy or _insists(run):
        return None
    return (
        f"{_FACTOR} is null: the loss is divided by the padded width of each micro-batch, so the gradient depends on "
        "the split (0.5 to 1.7 relative); data.max_response_length is taken for the constant here"
    )


@RULES.add(SILENT, "BB-VERL-027", _FACTOR, AGGREGATION, fixes=_longest_response)
@says(
    "the actor hands agg_loss no loss_scale_factor",
    "verl 0.7.0 and 0.7.1 dp_actor.update_policy, megatron_actor.loss_func; workers/utils/losses.py alone hands it on",
    ">=0.7.0,<0.8.0",
)
def _factor_not_read(run: VerlRun) -> str | None:
    factor = run[_FACTOR]
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or not run.legacy:
        return None
    if factor in (None, run["data.max_response_length"]) or _insists(run):
        return None
    return (
        f"{_FACTOR} = {factor} is not read by these workers: the loss is divided by the response's width, "
        f"data.max_response_length = {run['data.max_response_length']}"
    )


@RULES.add(SILENT, "BB-VERL-027", AGGREGATION, fixes=setting(AGGREGATION, "seq-mean-token-sum"))
@says(
    "agg_loss sums the sequences and divides by the response's width only",
    "verl 0.4.1 to 0.7.0 core_algos.agg_loss",
    "<0.7.1",
)
def _sum_without_mean(run: VerlRun) -> str | None:
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or not run.legacy:
        return None
    return (
        "seq-mean-token-sum-norm sums over the sequences of a micro-batch instead of taking their mean: the gradient "
        "grows with the micro-batch"
    )


@RULES.add(SILENT, "BB-VERL-028", MODE, MICRO, DYNAMIC, fixes=setting(MODE, "vanilla"))
@says("torch.mean per micro-batch, summed", "verl 0.9.1 core_algos.py:2000")
def _geometric_mean(run: VerlRun) -> str | None:
    if run.surrogate != "geo_mean" or run.legacy:
        return None
    return (
        "geo_mean takes a mean over each micro-batch, and the engine sums micro-batches: the gradient is multiplied by "
        "their number"
    )


@RULES.add(SILENT, "BB-VERL-029", MODE, fixes=setting(MODE, "vanilla"))
@says("covariances and top-k are taken per micro-batch", "verl 0.9.1 core_algos")
def _per_micro_statistics(run: VerlRun) -> str | None:
    if run.surrogate not in ("clip_cov", "kl_cov"):
        return None
    return f"{run.surrogate} picks tokens by statistics of each micro-batch: the gradient depends on the split"


@RULES.add(SILENT, "BB-VERL-030", AGGREGATION, MODE, fixes=setting(AGGREGATION, "seq-mean-token-mean"))
@says("the setting is not read", "verl 0.9.1 core_algos.py:1687, :2000; gspo: 0.6.0 to 0.9.0 compute_policy_loss_gspo")
def _aggregation_ignored(run: VerlRun) -> str | None:
    mode = LOSS_MODES.get(run.surrogate)
    insisted = None if mode is None else mode.insists_on(run.version)
    if insisted is None or AGGREGATION not in run.given_keys or AGGREGATIONS.get(run[AGGREGATION]) == insisted:
        return None
    others = " by the policy's term" if run[_IN_LOSS] or run[f"{ACTOR}entropy_coeff"] else ""
    return f"{AGGREGATION} = {run[AGGREGATION]} is ignored{others}: {run.surrogate} always takes a mean over sequences"


@RULES.add(SILENT, "BB-VERL-034", ESTIMATOR, fixes=setting(ESTIMATOR, "grpo"))
@says("a critic is built and trained", "verl 0.4.0 to 0.9.1 ppo_trainer.yaml")
def _default_critic(run: VerlRun) -> str | None:
    if run[ESTIMATOR] != "gae" or ESTIMATOR in run.given_keys:
        return None
    return f"{ESTIMATOR} is not given: its default is gae, which trains a critic too"


@RULES.add(SILENT, "BB-VERL-037", GROUP, ESTIMATOR, fixes=setting(GROUP, 8), core="BB127")
@says("mean 0 and deviation 1 are taken for a single completion", "verl 0.9.1 core_algos.py:268")
def _raw_rewards(run: VerlRun) -> str | None:
    if run[GROUP] != 1 or run[ESTIMATOR] not in ("grpo", "grpo_vectorized"):
        return None
    estimator = f"{ESTIMATOR} = {run[ESTIMATOR]}"
    return f"{GROUP} = 1 with {estimator}: a group of one has mean 0, so the raw reward is the advantage"


def _both_sides(run: VerlRun) -> tuple[Fix, ...]:
    return (fix(dict.fromkeys(_CLIP_SIDES, run[_CLIP])),)


@RULES.add(SILENT, "BB-VERL-038", _CLIP, fixes=_both_sides)
@says(
    "clip_ratio is read only where clip_ratio_low and clip_ratio_high are null",
    "verl 0.4.0 dp_actor.py:379; 0.9.1 core_algos.py:1321",
)
def _clip_unused(run: VerlRun) -> str | None:
    low, high = _CLIP_SIDES
    if (
        _CLIP not in run.given_keys
        or low in run.given_keys
        or high in run.given_keys
        or run[_CLIP] == run[low] == run[high]
    ):
        return None
    if run[low] is None or run[high] is None:
        return None
    return f"{_CLIP} = {run[_CLIP]} has no effect: {low} = {run[low]} and {high} = {run[high]} count"


def _engine_workers(run: VerlRun) -> tuple[Fix, ...]:
    if holds(">=0.7.1", run.version):
        return setting("trainer.use_legacy_worker_impl", "disable")(run)
    return (Fix("verl 0.8.0 or later"),)


@RULES.add(SILENT, "BB-VERL-042", AGGREGATION, MICRO, DYNAMIC, fixes=_engine_workers)
@says(
    "a micro-batch's loss is divided by the number of micro-batches or scaled by its rows; ranks are averaged",
    "verl 0.6.1 dp_actor.py:434",
    "<0.8.0",
)
def _micro_batch_scope(run: VerlRun) -> str | None:
    if not run.legacy:
        return None
    if run[AGGREGATION] == "token-mean":
        return (
            "token-mean divides by each micro-batch's own tokens: the gradient depends on the micro-batch size and the "
            "devices"
        )
    if run[AGGREGATION] in ("seq-mean-token-mean", "seq-mean-token-sum") and holds(">=0.6.1", run.version):
        return "the mean over sequences leaves fully masked ones out, micro-batch by micro-batch"
    return None


def _other_norm(run: VerlRun) -> str:
    return f"{ACTOR}grad_clip" if clip_grad_key(run).endswith("clip_grad") else f"{ACTOR}optim.clip_grad"


def _norm_fixes(run: VerlRun) -> tuple[Fix, ...]:
    bound = run[_other_norm(run)]
    off = run.engine != "megatron" and bound is not None and bound <= 0  # see BB-VERL-087
    return (fix({clip_grad_key(run): UNREACHED if off else bound}),)


@RULES.add(SILENT, "BB-VERL-043", *_NORMS, fixes=_norm_fixes)
@says("the setting is not read", "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:806; 0.7.1 dp_actor.py:396")
def _norm_unused(run: VerlRun) -> str | None:
    used, other = clip_grad_key(run), _other_norm(run)
    if other not in run.given_keys or run[other] == run[used]:
        return None
    return f"{other} = {run[other]} has no effect: {used} = {run[used]} bounds the gradient"


@RULES.add(WRONG, "BB-VERL-087", *_NORMS, fixes=lambda run: (fix({clip_grad_key(run): UNREACHED}),))
@says(
    "torch's clip_grad_norm_ multiplies by bound / norm",
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:806 (run); 0.7.1 dp_actor.py:396",
)
def _erased(run: VerlRun) -> str | None:
    key = clip_grad_key(run)
    if run.engine == "megatron" or run[key] is None or run[key] > 0:
        return None
    return f"{key} = {run[key]} multiplies every gradient by 0: nothing is trained; it does not mean off"


@RULES.add(SILENT, "BB-VERL-086", FILTERED, V1, fixes=setting(V1, True))
@says(
    "the setting is not read",
    "verl 0.9.0 to 0.9.1 trainer/ppo/ray_trainer.py; read in trainer/ppo/v1/trainer_base.py",
    ">=0.9.0",
)
def _filter_unread(run: VerlRun) -> str | None:
    return f"{FILTERED} has no effect: RayPPOTrainer filters no groups" if run[FILTERED] and not run.v1 else None


@RULES.add(SILENT, "BB-VERL-044", _CONTROL, fixes=setting(_CONTROL, "fixed"))
@says("AdaptiveKLController moves it towards target_kl", "verl 0.9.1 core_algos.AdaptiveKLController")
def _adaptive_penalty(run: VerlRun) -> str | None:
    if not run[_IN_REWARD] or run[_CONTROL] == "fixed":
        return None
    return f"{_CONTROL} = {run[_CONTROL]}: the KL coefficient changes during the run"


@RULES.add(SILENT, "BB-VERL-045", _RS, fixes=setting(_RS, None))
@says(
    "rejection writes response_mask; batch_num_tokens sums loss_mask",
    "verl 0.8.0 main_ppo_sync.py, 0.9.0 to 0.9.1 ppo/v1/agent_loop_tq.py: loss_mask is a copy of before; "
    "RayPPOTrainer's is made behind the rejection (workers/utils/padding.py)",
)
def _rejected_tokens(run: VerlRun) -> str | None:
    if not run.v1 or run[BYPASS] or run[_RS] is None:
        return None
    return "rejected tokens leave the loss but stay in its denominator (loss_mask)"


def _bypass_fixes(run: VerlRun) -> tuple[Fix, ...]:
    unread = {_IS: None, _RS: None, _LOSS_TYPE: "ppo_clip"}
    changes = {key: value for key, value in unread.items() if run[key] not in (None, value)}
    return fix(changes), fix({BYPASS: False})


@RULES.add(SILENT, "BB-VERL-095", BYPASS, _IS, _RS, _LOSS_TYPE, fixes=_bypass_fixes)
@says(
    "the trainer computes no correction, and names its loss in its own configuration, of which the workers have a "
    "copy from before",
    "verl 0.6.1 to 0.9.1 RayPPOTrainer.fit, rollout_corr_helper; 0.9.0 to 0.9.1 ppo/v1/trainer_base.py",
    ">=0.6.1",
)
def _bypassed(run: VerlRun) -> str | None:
    if not run[BYPASS] or run.surrogate in ("bypass_mode", "rollout_correction"):
        return None
    unread = [f"{key} = {run[key]}" for key in (_IS, _RS) if run[key] is not None]
    if run[_LOSS_TYPE] not in (None, "ppo_clip"):
        unread.append(f"{_LOSS_TYPE} = {run[_LOSS_TYPE]}")
    if not unread:
        return None
    return f"{', '.join(unread)}: not read beside bypass_mode; the loss is that of {MODE} = {run.surrogate}"


@RULES.add(OPEN, "BB-VERL-047", _IN_LOSS, _IN_REWARD, fixes=either((_IN_REWARD, False), (_IN_LOSS, False)))
@says("NOTICE: You have both enabled in-reward kl and kl loss.", "verl 0.4.0 to 0.9.1 validate_config")
def _two_penalties(run: VerlRun) -> str | None:
    if not (run[_IN_LOSS] and run[_IN_REWARD]):
        return None
    return "the KL penalty sits in the reward and in the loss; the canonical schema has one place for it"


@RULES.add(STANDING, "BB-VERL-073", AGGREGATION)
@says(
    "WARN: grad_norm is not finite", "verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py optimizer_step", OF_V1
)
def _empty_step(run: VerlRun) -> str | None:
    if run.legacy or run.engine == "megatron" or run[AGGREGATION] != "token-mean":
        return None
    return (
        "a step without response tokens divides 0 by 0: its gradient is not finite, and the step is left out silently"
    )


def _mixed_precision(run: VerlRun) -> tuple[Fix, ...]:
    if run[_DTYPE] not in ("float32", "fp32"):
        return (fix({f"{_MIXED}.param_dtype": run[_DTYPE]}),)
    return (fix({f"{_MIXED}.{part}_dtype": "fp32" for part in ("param", "reduce", "buffer")}),)


@RULES.add(SILENT, "BB-VERL-077", _DTYPE, fixes=_mixed_precision)
@says(
    "mixed_precision null means param_dtype bfloat16",
    "verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py _build_fsdp_module",
    OF_V1,
)
def _dtype_unread(run: VerlRun) -> str | None:
    if run.engine != "fsdp" or run.legacy or _DTYPE not in run.given_keys or run[_DTYPE] in ("bfloat16", "bf16"):
        return None
    if run[f"{_MIXED}.param_dtype"] is not None:
        return None
    return f"{_DTYPE} = {run[_DTYPE]} is not read: with {_MIXED} null the engine computes in bf16"


@RULES.add(NOTE, "BB-VERL-091", PREFIX_GROUPER, _PACKED, _FUSED, DYNAMIC, fixes=setting(PREFIX_GROUPER, False))
@says(
    "nothing is said",
    "verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py _build_module; 0.7.1 dp_actor.py:128",
    ">=0.7.1",
)
def _prefix_grouper_unread(run: VerlRun) -> str | None:
    """Source: verl 0.7.1 dp_actor.DataParallelPPOActor._forward_micro_batch; 0.8.0 to 0.9.1 FSDPEngine._build_module,
    which hands use_prefix_grouper to no model, and RayPPOTrainer._balance_batch."""
    if not run[PREFIX_GROUPER]:
        return None
    if run.legacy and run.engine == "fsdp":
        beside = [key for key in (_PACKED, _FUSED, DYNAMIC) if run[key]]
        beside += [run.context_key] if run.parallel[2] > 1 else []
        return f"{PREFIX_GROUPER} is left out beside {' and '.join(beside)}" if beside else None
    said = f"{PREFIX_GROUPER} is read by no worker: the prompt is computed once for each completion of a group"
    if not run.v1 and run[BALANCE]:
        said += "; balancing alone reads it, and deals whole groups to the replicas"
    return said


@RULES.add(STANDING, "BB-VERL-078", ESTIMATOR, fixes=setting(ESTIMATOR, "grpo"))
@says("masked_whiten over the batch", "verl 0.9.1 core_algos masked_whiten")
def _batch_whitening(run: VerlRun) -> str | None:
    mode = ESTIMATORS.get(run[ESTIMATOR])
    if mode is None or mode.scale != "batch":
        return None
    return f"{run[ESTIMATOR]} whitens over the whole rollout: an advantage depends on every other completion of it"
