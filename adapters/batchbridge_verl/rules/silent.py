"""What verl never reports: settings that are not read, rows that are padded, orders and scopes that hang on the split;
and what runs but has no canonical words."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.rule_table import NOTE, OPEN, SILENT, STANDING, WRONG
from batchbridge_verl.meaning import clip_grad_key
from batchbridge_verl.rules.row import AGGREGATION, ESTIMATOR, MODE
from batchbridge_verl.rules.ways_out import either, fix, setting
from batchbridge_verl.run import DYNAMIC, GROUP, MICRO, Run
from batchbridge_verl.settings import ACTOR, PREFIX_GROUPER, holds
from batchbridge_verl.terms import AGGREGATIONS, ESTIMATORS, LOSS_MODES

_FACTOR = f"{ACTOR}loss_scale_factor"
_CORRECTION = "algorithm.rollout_correction."
_BYPASS, _LOSS_TYPE = f"{_CORRECTION}bypass_mode", f"{_CORRECTION}loss_type"


# ---- the loss


def _width_constant(run: Run) -> str | None:
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or run[_FACTOR] is not None:
        return None
    if run.legacy or LOSS_MODES.get(run.surrogate, LOSS_MODES["vanilla"]).insists_on(run.version) is not None:
        return None
    return (
        f"{_FACTOR} is null: the loss is divided by the padded width of each micro-batch, so the gradient depends on "
        "the split (0.5 to 1.7 relative); data.max_response_length is taken for the constant here"
    )


def _sum_without_mean(run: Run) -> str | None:
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or not run.legacy:
        return None
    return (
        "seq-mean-token-sum-norm sums over the sequences of a micro-batch instead of taking their mean: the gradient "
        "grows with the micro-batch"
    )


def _micro_batch_scope(run: Run) -> str | None:
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


def _engine_workers(run: Run) -> tuple[Fix, ...]:
    if holds(">=0.7.1", run.version):
        return setting("trainer.use_legacy_worker_impl", "disable")(run)
    return (Fix("verl 0.8.0 or later"),)


def _geometric_mean(run: Run) -> str | None:
    if run.surrogate != "geo_mean" or run.legacy:
        return None
    return (
        "geo_mean takes a mean over each micro-batch, and the engine sums micro-batches: the gradient is multiplied by "
        "their number"
    )


def _per_micro_statistics(run: Run) -> str | None:
    if run.surrogate not in ("clip_cov", "kl_cov"):
        return None
    return f"{run.surrogate} picks tokens by statistics of each micro-batch: the gradient depends on the split"


def _aggregation_ignored(run: Run) -> str | None:
    mode = LOSS_MODES.get(run.surrogate)
    insisted = None if mode is None else mode.insists_on(run.version)
    if insisted is None or AGGREGATION not in run.given or AGGREGATIONS.get(run[AGGREGATION]) == insisted:
        return None
    others = " by the policy's term" if run[f"{ACTOR}use_kl_loss"] or run[f"{ACTOR}entropy_coeff"] else ""
    return f"{AGGREGATION} = {run[AGGREGATION]} is ignored{others}: {run.surrogate} always takes a mean over sequences"


def _rejected_tokens(run: Run) -> str | None:
    if not run.v1 or run[_BYPASS] or run[f"{_CORRECTION}rollout_rs"] is None:
        return None
    return "rejected tokens leave the loss but stay in its denominator (loss_mask)"


def _bypassed(run: Run) -> str | None:
    if not run[_BYPASS] or run.surrogate in ("bypass_mode", "rollout_correction"):
        return None
    asked = {f"{_CORRECTION}{name}": run[f"{_CORRECTION}{name}"] for name in ("rollout_is", "rollout_rs")}
    unread = [f"{key} = {value}" for key, value in asked.items() if value is not None]
    if run[_LOSS_TYPE] not in (None, "ppo_clip"):
        unread.append(f"{_LOSS_TYPE} = {run[_LOSS_TYPE]}")
    if not unread:
        return None
    return f"{', '.join(unread)}: not read beside bypass_mode; the loss is that of {MODE} = {run.surrogate}"


def _empty_step(run: Run) -> str | None:
    if run.legacy or run.engine == "megatron" or run[AGGREGATION] != "token-mean":
        return None
    return (
        "a step without response tokens divides 0 by 0: its gradient is not finite, and the step is left out silently"
    )


def _raw_rewards(run: Run) -> str | None:
    if run[GROUP] != 1 or run[ESTIMATOR] not in ("grpo", "grpo_vectorized"):
        return None
    estimator = f"{ESTIMATOR} = {run[ESTIMATOR]}"
    return f"{GROUP} = 1 with {estimator}: a group of one has mean 0, so the raw reward is the advantage"


def _batch_whitening(run: Run) -> str | None:
    mode = ESTIMATORS.get(run[ESTIMATOR])
    if mode is None or mode.scale != "batch":
        return None
    return f"{run[ESTIMATOR]} whitens over the whole rollout: an advantage depends on every other completion of it"


def _adaptive_penalty(run: Run) -> str | None:
    if not run["algorithm.use_kl_in_reward"] or run["algorithm.kl_ctrl.type"] == "fixed":
        return None
    return f"algorithm.kl_ctrl.type = {run['algorithm.kl_ctrl.type']}: the KL coefficient changes during the run"


# ---- settings that are not read


def _default_critic(run: Run) -> str | None:
    if run[ESTIMATOR] != "gae" or ESTIMATOR in run.given:
        return None
    return f"{ESTIMATOR} is not given: its default is gae, which trains a critic too"


def _clip_unused(run: Run) -> str | None:
    key = f"{ACTOR}clip_ratio"
    sides = [f"{key}_{side}" for side in ("low", "high")]
    if key not in run.given or any(side in run.given for side in sides) or run[key] == run[sides[0]] == run[sides[1]]:
        return None
    if any(run[side] is None for side in sides):
        return None
    return f"{key} = {run[key]} has no effect: {sides[0]} = {run[sides[0]]} and {sides[1]} = {run[sides[1]]} count"


def _other_norm(run: Run) -> str:
    return f"{ACTOR}grad_clip" if clip_grad_key(run).endswith("clip_grad") else f"{ACTOR}optim.clip_grad"


def _norm_unused(run: Run) -> str | None:
    used, other = clip_grad_key(run), _other_norm(run)
    if other not in run.given or run[other] == run[used]:
        return None
    return f"{other} = {run[other]} has no effect: {used} = {run[used]} bounds the gradient"


def _erased(run: Run) -> str | None:
    key = clip_grad_key(run)
    if run.engine == "megatron" or run[key] is None or run[key] > 0:
        return None
    return f"{key} = {run[key]} multiplies every gradient by 0: nothing is trained; it does not mean off"


def _filter_unread(run: Run) -> str | None:
    key = "algorithm.filter_groups.enable"
    return f"{key} has no effect: RayPPOTrainer filters no groups" if run[key] and not run.v1 else None


_DTYPE, _MIXED = f"{ACTOR}fsdp_config.dtype", f"{ACTOR}fsdp_config.mixed_precision"


def _dtype_unread(run: Run) -> str | None:
    if run.engine != "fsdp" or run.legacy or _DTYPE not in run.given or run[_DTYPE] in ("bfloat16", "bf16"):
        return None
    if run[f"{_MIXED}.param_dtype"] is not None:
        return None
    return f"{_DTYPE} = {run[_DTYPE]} is not read: with {_MIXED} null the engine computes in bf16"


def _mixed_precision(run: Run) -> tuple[Fix, ...]:
    if run[_DTYPE] not in ("float32", "fp32"):
        return (fix({f"{_MIXED}.param_dtype": run[_DTYPE]}),)
    return (fix({f"{_MIXED}.{part}_dtype": "fp32" for part in ("param", "reduce", "buffer")}),)


_PACKED, _FUSED = "actor_rollout_ref.model.use_remove_padding", "actor_rollout_ref.model.use_fused_kernels"


def _prefix_grouper_unread(run: Run) -> str | None:
    """Source: verl 0.7.1 dp_actor.DataParallelPPOActor._forward_micro_batch; 0.8.0 to 0.9.1 FSDPEngine._build_module,
    which hands use_prefix_grouper to no model, and RayPPOTrainer._balance_batch."""
    if not run[PREFIX_GROUPER]:
        return None
    if run.legacy and run.engine == "fsdp":
        beside = [key for key in (_PACKED, _FUSED, DYNAMIC) if run[key]]
        beside += [run.context_key] if run.parallel[2] > 1 else []
        return f"{PREFIX_GROUPER} is left out beside {' and '.join(beside)}" if beside else None
    said = f"{PREFIX_GROUPER} is read by no worker: the prompt is computed once for each completion of a group"
    if not run.v1 and run["trainer.balance_batch"]:
        said += "; balancing alone reads it, and deals whole groups to the replicas"
    return said


# ---- what runs, and has no canonical words


def _mode_inexpressible(run: Run) -> str | None:
    if run.surrogate not in ("bypass_mode", "rollout_correction"):
        return None
    return (
        f"{MODE} = {run.surrogate} has no canonical form: its factors and rejections follow the log-probabilities of "
        f"each micro-batch; {MODE} = vanilla with {_BYPASS} trains PPO's loss on the sampler's log-probabilities"
    )


def _two_penalties(run: Run) -> str | None:
    if not (run[f"{ACTOR}use_kl_loss"] and run["algorithm.use_kl_in_reward"]):
        return None
    return "the KL penalty sits in the reward and in the loss; the canonical schema has one place for it"


OF_V1 = ">=0.8.0"


def _bypass_fixes(run: Run) -> tuple[Fix, ...]:
    unread = {f"{_CORRECTION}rollout_is": None, f"{_CORRECTION}rollout_rs": None, _LOSS_TYPE: "ppo_clip"}
    changes = {key: value for key, value in unread.items() if run[key] not in (None, value)}
    return fix(changes), fix({_BYPASS: False})


UNREPORTED = (
    OPEN(
        "BB-VERL-025",
        _mode_inexpressible,
        (MODE,),
        "the loss of rollout_correction",
        "verl 0.9.1 core_algos.compute_policy_loss_bypass_mode",
    ),
    SILENT(
        "BB-VERL-027",
        _width_constant,
        (_FACTOR, AGGREGATION),
        "agg_loss divides by loss_mask.shape[-1]",
        "verl 0.9.1 core_algos.py:1190",
        lambda run: setting(_FACTOR, run["data.max_response_length"])(run),
    ),
    SILENT(
        "BB-VERL-027",
        _sum_without_mean,
        (AGGREGATION,),
        "agg_loss sums the sequences and divides by the response's width only",
        "verl 0.4.1 to 0.6.1 core_algos.agg_loss",
        setting(AGGREGATION, "seq-mean-token-sum"),
        "<0.7.0",
    ),
    SILENT(
        "BB-VERL-028",
        _geometric_mean,
        (MODE, MICRO, DYNAMIC),
        "torch.mean per micro-batch, summed",
        "verl 0.9.1 core_algos.py:2000",
        setting(MODE, "vanilla"),
    ),
    SILENT(
        "BB-VERL-029",
        _per_micro_statistics,
        (MODE,),
        "covariances and top-k are taken per micro-batch",
        "verl 0.9.1 core_algos",
        setting(MODE, "vanilla"),
    ),
    SILENT(
        "BB-VERL-030",
        _aggregation_ignored,
        (AGGREGATION, MODE),
        "the setting is not read",
        "verl 0.9.1 core_algos.py:1687, :2000; gspo: 0.6.0 to 0.9.0 compute_policy_loss_gspo",
        setting(AGGREGATION, "seq-mean-token-mean"),
    ),
    SILENT(
        "BB-VERL-034",
        _default_critic,
        (ESTIMATOR,),
        "a critic is built and trained",
        "verl 0.4.0 to 0.9.1 ppo_trainer.yaml",
        setting(ESTIMATOR, "grpo"),
    ),
    SILENT(
        "BB-VERL-037",
        _raw_rewards,
        (GROUP, ESTIMATOR),
        "mean 0 and deviation 1 are taken for a single completion",
        "verl 0.9.1 core_algos.py:268",
        setting(GROUP, 8),
    ),
    SILENT(
        "BB-VERL-038",
        _clip_unused,
        (f"{ACTOR}clip_ratio",),
        "clip_ratio is read only where clip_ratio_low and clip_ratio_high are null",
        "verl 0.4.0 dp_actor.py:379; 0.9.1 core_algos.py:1321",
        lambda run: (fix({f"{ACTOR}clip_ratio_{side}": run[f"{ACTOR}clip_ratio"] for side in ("low", "high")}),),
    ),
    SILENT(
        "BB-VERL-042",
        _micro_batch_scope,
        (AGGREGATION, MICRO, DYNAMIC),
        "a micro-batch's loss is divided by the number of micro-batches or scaled by its rows; ranks are averaged",
        "verl 0.6.1 dp_actor.py:434",
        _engine_workers,
        "<0.8.0",
    ),
    SILENT(
        "BB-VERL-043",
        _norm_unused,
        (f"{ACTOR}grad_clip", f"{ACTOR}optim.clip_grad"),
        "the setting is not read",
        "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:806; 0.7.1 dp_actor.py:396",
        lambda run: (fix({clip_grad_key(run): run[_other_norm(run)]}),),
    ),
    WRONG(
        "BB-VERL-087",
        _erased,
        (f"{ACTOR}grad_clip", f"{ACTOR}optim.clip_grad"),
        "torch's clip_grad_norm_ multiplies by bound / norm",
        "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:806 (run); 0.7.1 dp_actor.py:396",
        lambda run: (fix({clip_grad_key(run): UNREACHED}),),
    ),
    SILENT(
        "BB-VERL-086",
        _filter_unread,
        ("algorithm.filter_groups.enable", "trainer.use_v1"),
        "the setting is not read",
        "verl 0.9.0 to 0.9.1 trainer/ppo/ray_trainer.py; read in trainer/ppo/v1/trainer_base.py",
        setting("trainer.use_v1", True),
        ">=0.9.0",
    ),
    SILENT(
        "BB-VERL-044",
        _adaptive_penalty,
        ("algorithm.kl_ctrl.type",),
        "AdaptiveKLController moves it towards target_kl",
        "verl 0.9.1 core_algos.AdaptiveKLController",
        setting("algorithm.kl_ctrl.type", "fixed"),
    ),
    SILENT(
        "BB-VERL-045",
        _rejected_tokens,
        ("algorithm.rollout_correction.rollout_rs",),
        "rejection writes response_mask; batch_num_tokens sums loss_mask",
        "verl 0.8.0 main_ppo_sync.py, 0.9.0 to 0.9.1 ppo/v1/agent_loop_tq.py: loss_mask is a copy of before; "
        "RayPPOTrainer's is made behind the rejection (workers/utils/padding.py)",
        setting("algorithm.rollout_correction.rollout_rs", None),
    ),
    SILENT(
        "BB-VERL-095",
        _bypassed,
        (_BYPASS, f"{_CORRECTION}rollout_is", f"{_CORRECTION}rollout_rs", _LOSS_TYPE),
        "the trainer computes no correction, and names its loss in its own configuration, of which the workers have a "
        "copy from before",
        "verl 0.6.1 to 0.9.1 RayPPOTrainer.fit, rollout_corr_helper; 0.9.0 to 0.9.1 ppo/v1/trainer_base.py",
        _bypass_fixes,
        ">=0.6.1",
    ),
    OPEN(
        "BB-VERL-047",
        _two_penalties,
        (f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward"),
        "NOTICE: You have both enabled in-reward kl and kl loss.",
        "verl 0.4.0 to 0.9.1 validate_config",
        either(("algorithm.use_kl_in_reward", False), (f"{ACTOR}use_kl_loss", False)),
    ),
    STANDING(
        "BB-VERL-073",
        _empty_step,
        (AGGREGATION,),
        "WARN: grad_norm is not finite",
        "verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py optimizer_step",
        versions=OF_V1,
    ),
    SILENT(
        "BB-VERL-077",
        _dtype_unread,
        (_DTYPE,),
        "mixed_precision null means param_dtype bfloat16",
        "verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py _build_fsdp_module",
        _mixed_precision,
        OF_V1,
    ),
    NOTE(
        "BB-VERL-091",
        _prefix_grouper_unread,
        (PREFIX_GROUPER, _PACKED, _FUSED, DYNAMIC),
        "nothing is said",
        "verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py _build_module; 0.7.1 dp_actor.py:128",
        setting(PREFIX_GROUPER, False),
        ">=0.7.1",
    ),
    STANDING(
        "BB-VERL-078",
        _batch_whitening,
        (ESTIMATOR,),
        "masked_whiten over the batch",
        "verl 0.9.1 core_algos masked_whiten",
        setting(ESTIMATOR, "grpo"),
    ),
)
