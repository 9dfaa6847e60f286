"""Reasons for which `wrap` does not take a run of verl, and what it asks for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchbridge import Spec
from batchbridge.kit import CandidatePlan, Request, refused
from batchbridge.kit.code_names import has_base
from batchbridge.kit.refusals import (
    Answer,
    Refusals,
    any_on,
    common,
    on,
    own_spec,
    setting,
)
from batchbridge.kit.token_budgets import cut_of, objection
from batchbridge_verl import distillation
from batchbridge_verl.ahead import OBSERVED_ALONE, ON_THE_TRAINERS_DEVICES
from batchbridge_verl.run import FULLY_ASYNC, VerlRun
from batchbridge_verl.settings import ACTOR, CRITIC, ROLLOUT, holds
from batchbridge_verl.sharing import asked_in_vain
from batchbridge_verl.terms import AGGREGATIONS, KL_NAMES, LOSS_MODES, aggregations_of
from batchbridge_verl.writing import resolved_budget_settings

PROVEN_SURROGATES = ("vanilla", "gspo", "cispo", "sapo", "gpg", "dro")
"""Loss modes whose gradient is held against the oracle: tests/adapters/verl/native/test_gradients_verl.py."""
OFF = 1e30
"""A bound that is never reached: verl has no word for a clip that is off, and infinity times zero is not a number."""
SAMPLER, CORRECTION = "trainer.v1.sampler.", "algorithm.rollout_correction."
CORRECTING = tuple(f"{CORRECTION}{name}" for name in ("rollout_is", "rollout_rs", "bypass_mode"))
"""Settings that the sampler's log-probabilities act by."""
SCORED = f"{ROLLOUT}calculate_log_probs"
VETO = f"{CORRECTION}rollout_token_veto_threshold"
CUSTOM_SAMPLER, DRO_BETA = f"{SAMPLER}custom_sampler.path", f"{ACTOR}policy_loss.dro_beta"
SAID = frozenset({SCORED, CUSTOM_SAMPLER, DRO_BETA, VETO})
"""Settings that say nothing of what is trained, and that refusals look at."""


def is_v1(trainer: object) -> bool:
    """Whether `trainer` is a V1 trainer of any mode."""
    return has_base(trainer, "verl.trainer.ppo.v1.trainer_base", "PPOTrainer")


def is_v0(trainer: object) -> bool:
    """Whether `trainer` is a `RayPPOTrainer`; EasyR1's stands in another module."""
    return has_base(trainer, "verl.trainer.ppo.ray_trainer", "RayPPOTrainer")


def loss_mode(spec: Spec) -> str | None:
    """The loss mode with the spec's surrogate and ratio: gspo is vanilla's surrogate over whole sequences."""
    wanted = spec.objective.surrogate, spec.objective.ratio_level
    return next((mode.name for mode in LOSS_MODES.values() if (mode.surrogate, mode.ratio_level) == wanted), None)


def run_of(request: Request) -> VerlRun:
    """The run that a request's settings are."""
    run: VerlRun = request.reading.run  # type: ignore[attr-defined]  # a `RunReading` of this adapter
    return run


REFUSALS = Refusals()


@REFUSALS.row(
    "main_ppo_sync",
    "BatchBridge does not work with the trainer of verl.trainer.main_ppo_sync",
    remedy="start verl.trainer.main_ppo",
)
def _main_ppo_sync(request: Request) -> bool:
    return run_of(request).entry == "main_ppo_sync" and holds("<0.9.0", run_of(request).version)


@REFUSALS.row(
    "legacy_workers",
    "of verl's legacy workers proven are the policy's steps of dp_actor, each row by itself: Megatron's have a loop of "
    "their own, and actor.use_prefix_grouper computes rows of a prompt together",
    remedy="on verl 0.7.1 trainer.use_legacy_worker_impl=disable, or verl 0.8.0 or later",
)
def _legacy_workers(request: Request) -> bool:
    run = run_of(request)
    together = holds(">=0.7.1", run.version) and run[f"{ACTOR}use_prefix_grouper"]
    return run.legacy and (run.engine != "fsdp" or bool(together))


@REFUSALS.row(
    "padded_rows",
    "with actor_rollout_ref.model.use_remove_padding=False the engine workers of verl 0.7.1 attend to as many tokens "
    "of each row as responses are padded to, whatever its own length: a longer row is trained on log-probabilities "
    "that are not the policy's",
    remedy="actor_rollout_ref.model.use_remove_padding=True, or verl 0.8.0 or later",
)
def _padded_rows(request: Request) -> bool:
    """Source: verl 0.7.1 workers/engine/fsdp/transformer_impl.py prepare_model_inputs, whose mask has the length of
    `loss_mask`, and workers/utils/padding.py left_right_2_no_padding, which makes that of the responses."""
    run = run_of(request)
    return holds("<0.8.0", run.version) and not run.legacy and not run["actor_rollout_ref.model.use_remove_padding"]


@REFUSALS.row(
    "earlier_release",
    "before verl 0.8.0 proven are the policy's steps under FSDP, each row on one device: a critic, and rows that ranks "
    "share (Ulysses), are not; nor, before 0.7.1, is trainer.use_legacy_worker_impl=disable",
    remedy="algorithm.adv_estimator=grpo without a critic, sequence parallel sizes of 1, and before 0.7.1 "
    "trainer.use_legacy_worker_impl=auto; or verl 0.8.0 or later",
)
def _earlier_release(request: Request) -> bool:
    run = run_of(request)
    others = holds("<0.7.1", run.version) and run["trainer.use_legacy_worker_impl"] == "disable"
    return holds("<0.8.0", run.version) and (run.critic or run.parallel[2] > 1 or others)


@REFUSALS.row(
    "one_step_off",
    "the trainer of verl's one_step_off_policy is observed alone: its rollouts are generated one ahead, on devices of "
    "their own, and no plan of it is proven",
    remedy="start verl.trainer.main_ppo",
)
def _one_step_off(request: Request) -> bool:
    return request.mode == "enforce" and run_of(request).entry == "one_step_off"


@REFUSALS.row("fully_async", OBSERVED_ALONE, remedy="start verl.trainer.main_ppo")
def _fully_async(request: Request) -> bool:
    return request.mode == "enforce" and run_of(request).entry == FULLY_ASYNC


@REFUSALS.row(
    "own_program",
    "BatchBridge works with a custom program that builds verl's trainer",
    remedy="batchbridge run tells when the trainer is built",
)
def _own_program(request: Request) -> bool | None:
    return None if run_of(request).own_program else False


@REFUSALS.row(
    "critic",
    "a critic is followed where the run is enforced and algorithm.adv_estimator is gae: its optimizer steps are held "
    "against the plan in no other mode, and what it learns beside another estimator is not proven",
    remedy="algorithm.adv_estimator=gae, or critic.enable=False",
)
def _critic(request: Request) -> bool:
    run = run_of(request)
    return run.critic and (request.mode != "enforce" or run["algorithm.adv_estimator"] != "gae")


@REFUSALS.row(
    "critic_settings",
    "the spec has another critic than the trainer: GAE, its value loss and its learning rate are taken from the "
    "trainer's configuration; set algorithm.gamma, algorithm.lam and the keys below critic",
)
def _critic_settings(request: Request) -> bool:
    return request.spec.critic != own_spec(request).critic


@REFUSALS.row(
    "critic_engine",
    "only a critic under FSDP is proven, without sequence parallelism",
    remedy="critic.strategy=fsdp or fsdp2, with critic.fsdp.ulysses_sequence_parallel_size=1",
)
def _critic_engine(request: Request) -> bool:
    """Whether the critic runs where no run was measured. Its engine reads the sequence parallelism of fsdp alone.
    Source: verl 0.8.0 to 0.9.1
    FSDPCriticConfig, FSDPEngine.__init__."""
    run = run_of(request)
    shares = run[f"{CRITIC}fsdp.ulysses_sequence_parallel_size"] > 1
    return run.critic and (run[f"{CRITIC}strategy"] not in ("fsdp", "fsdp2") or shares)


@REFUSALS.row(
    "critic_correction",
    "a critic beside a teacher, or beside corrections towards the sampler or its log-probabilities, is not proven: "
    "which tokens its value loss counts then is verl's own",
    remedy="algorithm.rollout_correction.rollout_is=null, rollout_rs=null, bypass_mode=False and "
    "distillation.enabled=False",
)
def _critic_correction(request: Request) -> bool | None:
    return any_on(request, distillation.ENABLED, *CORRECTING) if run_of(request).critic else False


@REFUSALS.row(
    "value_baseline",
    "the spec's advantages need a critic, and this trainer has none",
    remedy="algorithm.adv_estimator=grpo",
)
def _value_baseline(request: Request) -> bool:
    return request.spec.advantage.baseline == "value" and not run_of(request).critic


REFUSALS.append(refused.batch_scale("verl", remedy="algorithm.adv_estimator=grpo or rloo"))


@REFUSALS.row(
    "asynchronous",
    "generation that runs ahead works in one mode each: colocate_async with mode enforce, since a step of it has rows "
    "of several rollouts and its number is known to the plan alone; one_step_off_policy and fully_async_policy of verl "
    "0.9.1 with mode observe, the latter where no engine generates on the trainer's own devices "
    "(use_trainer_do_validate, use_dynamic_resource_scheduling)",
)
def _asynchronous(request: Request) -> bool:
    if request.mode == "enforce" or own_spec(request).staleness.mode == "sync":
        return False
    run = run_of(request)
    shared = run.entry == FULLY_ASYNC and any(on(request, key) for key in ON_THE_TRAINERS_DEVICES)
    ahead = run.entry in ("one_step_off", FULLY_ASYNC) and holds(">=0.9.1", run.version)
    return not (request.mode == "observe" and ahead and not shared)


@REFUSALS.row("distillation", distillation.ALONE, remedy="distillation.enabled=False")
def _distillation(request: Request) -> bool | None:
    return distillation.refused(request, run_of(request))


REFUSALS.append(refused.group_filter("algorithm.filter_groups, which the V1 trainer reads"))
REFUSALS.append(refused.staleness("trainer.v1.trainer_mode and trainer.v1.sampler.max_off_policy_threshold"))


def _has_candidates(spec: Spec) -> bool:
    """Whether rewards or timing decide what fills a rollout: a `CandidatePlan`."""
    return spec.rollout.group_filter != "none" or spec.staleness.mode != "sync"


@REFUSALS.row(
    "custom_sampler",
    "trainer.v1.sampler.custom_sampler chooses among candidates by its own rule",
    remedy="leave trainer.v1.sampler.custom_sampler out",
)
def _custom_sampler(request: Request) -> bool | None:
    return on(request, CUSTOM_SAMPLER) if _has_candidates(request.spec) else False


@REFUSALS.row(
    "sync_refill_failed_groups",
    "trainer.v1.sampler.sync_refill_failed_groups replaces planned prompts by others; set it to False",
)
def _sync_refill_failed_groups(request: Request) -> bool | None:
    return on(request, f"{SAMPLER}sync_refill_failed_groups") if run_of(request).v1 else False


@REFUSALS.row(
    "critic_warmup",
    "trainer.critic_warmup leaves whole rollouts out of training, and no critic trains on them; set it to 0",
)
def _critic_warmup(request: Request) -> bool:
    return run_of(request)["trainer.critic_warmup"] > 1 and not run_of(request).critic


@REFUSALS.row(
    "surrogate",
    f"policy_loss.loss_mode: proven against the oracle are {', '.join(PROVEN_SURROGATES)}; geo_mean takes a mean over "
    "each micro-batch, so that its gradient grows with their number, clip_cov and kl_cov choose tokens by the "
    "statistics of each, dppo_tv and dppo_kl by a threshold that rounding decides",
    remedy="actor_rollout_ref.actor.policy_loss.loss_mode=vanilla, or gspo for ratios of whole sequences",
)
def _surrogate(request: Request) -> bool:
    return loss_mode(request.spec) not in PROVEN_SURROGATES


@REFUSALS.row(
    "dro_beta",
    "the schema has no word for DRO's beta: it stays the trainer's own, which has none",
    remedy="another policy_loss.loss_mode",
)
def _dro_beta(request: Request) -> bool:
    return request.spec.objective.surrogate == "dro" and setting(request.reading, DRO_BETA) is None


REFUSALS.append(refused.aggregation("verl's losses aggregate as", AGGREGATIONS.values()))


@REFUSALS.row(
    "release",
    "this release of verl lacks the loss mode or the aggregation: dro and token-sum came with 0.9.0, and gspo took the "
    "mean over sequences, whatever loss_agg_mode says, before 0.9.1; filtered groups and generation that runs ahead "
    "are proven on 0.9.1",
)
def _release(request: Request) -> bool:
    version = run_of(request).version
    if isinstance(request.plan, CandidatePlan) and holds("<0.9.1", version):
        return True
    mode = LOSS_MODES.get(loss_mode(request.spec) or "")
    if mode is None:
        return False  # no release has it; "surrogate" says so
    known = aggregations_of(mode, version)
    return not holds(mode.versions, version) or request.spec.loss.policy.aggregation not in known


REFUSALS.extend(
    row
    for row in common("verl", references=lambda request: run_of(request).reference)
    if row.name != "sampler_logprobs"
)


@REFUSALS.row(
    "sampler_logprobs",
    "the spec and the trainer differ in whether old log-probabilities are the sampler's: set "
    "algorithm.rollout_correction.bypass_mode",
)
def _sampler_logprobs(request: Request) -> bool:
    both = {one.objective.old_logprobs for one in (request.spec, own_spec(request))}
    return len(both) > 1 and "sampler" in both


REFUSALS.append(
    refused.kl_estimator(
        f"verl's estimators are {', '.join(KL_NAMES)}", [f"{name}{plus}" for name in KL_NAMES for plus in ("", "+")]
    )
)


def _unproven_correction(request: Request, name: str) -> bool | None:
    """Whether the sampler's log-probabilities act by a setting where that is not proven: before 0.9.1, or where they
    are not kept."""
    version = run_of(request).version
    if not (asked := on(request, f"{CORRECTION}{name}")) or holds("<0.9.1", version):
        return asked
    scored = on(request, SCORED, holds(">=0.9.0", version))
    return None if scored is None else not scored


@REFUSALS.row(
    "bypass_mode",
    "rollout_correction.bypass_mode is proven against the oracle on verl 0.9.1 alone, with "
    "actor_rollout_ref.rollout.calculate_log_probs=True and without a teacher; beside it verl reads neither "
    "rollout_is, rollout_rs nor loss_type=reinforce: set them to null, null and ppo_clip",
    remedy="algorithm.rollout_correction.bypass_mode=False",
)
def _bypass_mode(request: Request) -> bool | None:
    """Source: verl 0.9.1 rollout_corr_helper.apply_bypass_mode, which names its loss in the driver's configuration, and
    the workers have their own."""
    if not (asked := on(request, f"{CORRECTION}bypass_mode")):
        return asked
    run = run_of(request)
    corrects = any(run[f"{CORRECTION}{name}"] is not None for name in ("rollout_is", "rollout_rs"))
    if corrects or run[f"{CORRECTION}loss_type"] not in (None, "ppo_clip") or run[distillation.ENABLED]:
        return True
    return _unproven_correction(request, "bypass_mode")


@REFUSALS.row(
    "rejection",
    "rollout_correction.rollout_rs is proven against the oracle on verl 0.9.1 alone, and rejects nothing without "
    "actor_rollout_ref.rollout.calculate_log_probs=True; rollout_token_veto_threshold of 0.6.1 and 0.7.0 rejects, too",
    remedy="algorithm.rollout_correction.rollout_rs=null",
)
def _rejection(request: Request) -> bool | None:
    """Source: verl 0.6.1 and 0.7.0 rollout_corr_helper.compute_rollout_correction_and_rejection_mask, whose veto is by
    itself."""
    vetoes = on(request, VETO)
    return _unproven_correction(request, "rollout_rs") if vetoes is False else vetoes


@REFUSALS.row(
    "sampler_correction",
    "rollout_correction.rollout_is is proven against the oracle on verl 0.9.1 alone, corrects nothing without "
    "actor_rollout_ref.rollout.calculate_log_probs=True, has one factor for a sequence where the ratio is one's "
    "(rollout_is=sequence with gspo), and stays the trainer's own; "
    'allow=("sampler_correction",) accepts it as verl computes it',
    allowable=True,
    remedy="algorithm.rollout_correction.rollout_is=null",
)
def _sampler_correction(request: Request) -> bool | None:
    objective = request.spec.objective
    named = objective.sampler_correction or ""
    of_tokens = objective.ratio_level == "sequence" and named.startswith("token_")
    if of_tokens or objective.sampler_correction != own_spec(request).objective.sampler_correction:
        return True
    return _unproven_correction(request, "rollout_is")


@REFUSALS.row("group_size", "the spec has another number of completions per prompt; set actor_rollout_ref.rollout.n")
def _group_size(request: Request) -> bool:
    """A V1 trainer takes another one."""
    wanted, own = (one.rollout.completions_per_prompt for one in (request.spec, own_spec(request)))
    return not run_of(request).v1 and wanted != own


@REFUSALS.row(
    "fp16", "the fp16 gradient scaler cannot leave out an update without tokens, and rescales on its own; use bf16"
)
def _fp16(request: Request) -> bool:
    return own_spec(request).carried.precision == "fp16"


# ---- what only a trainer shows


def _no_budget(trainer: Any, request: Request) -> str | None:
    """The reason why the spec's micro-batches cannot be verl's; None where they can, or are already."""
    asked = request.spec.micro_batch
    if cut_of(asked) == cut_of(own_spec(request).micro_batch):
        return None
    if asked.tokens_per_device is None:
        return "give micro_batch.tokens_per_device; fixed sizes, and budgets of forward-only passes alone, stay its own"
    if getattr(trainer, "actor_rollout_wg", None) is not None:
        return (
            "its workers have started with their micro-batches; wrap before init_workers(), or set "
            "actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu in the configuration"
        )
    return objection(request.reading, resolved_budget_settings(asked), asked)


REFUSALS.append(refused.tokens_per_device("verl", _no_budget))


@REFUSALS.live("initialised", "wrap a V1 trainer before init(): later is not proven", remedy="wrap before init()")
def _initialised(trainer: Any, request: Request) -> bool:
    return is_v1(trainer) and hasattr(trainer, "actor_rollout_wg")


PROVEN_STRATEGIES = ("fsdp", "fsdp2")


def _other_engine(request: Request) -> bool:
    strategy = setting(request.reading, f"{ACTOR}strategy")
    return run_of(request).engine != "fsdp" or strategy not in PROVEN_STRATEGIES


@REFUSALS.live(
    "unproven_engine",
    "only the FSDP engine is proven: of another one, no run was measured, and what it does between its loss and its "
    'update (clipping, for one) is not seen; allow=("unproven_engine",) measures what its loss weighs, and so do the '
    "modes verify and observe, which change nothing",
    allowable=True,
    foreseen=_other_engine,
    remedy="model_engine=dp, with actor_rollout_ref.actor.strategy=fsdp or fsdp2",
)
def _unproven_engine(trainer: Any, request: Request) -> bool:
    """A trainer's configuration is read whatever its engine, which has settings of its own."""
    return trainer.config.actor_rollout_ref.actor.strategy not in PROVEN_STRATEGIES


@REFUSALS.live(
    "train_sampler",
    "the trainer was built with a sampler of its own (train_sampler), whose order no configuration says, and a wrapped "
    "run would have the plan's in its place",
    remedy="leave train_sampler out, and bring the data file into that order, with data.shuffle=False",
)
def _train_sampler(trainer: Any, request: Request) -> bool:
    """Source: verl 0.8.0 to 0.9.1 create_rl_sampler."""
    sampler = getattr(getattr(trainer, "train_dataloader", None), "sampler", None)
    native = ("RandomSampler", "SequentialSampler")
    return is_v0(trainer) and sampler is not None and type(sampler).__name__ not in native


def _registered() -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(sys.modules.get("verl.trainer.ppo.core_algos"), "ADV_ESTIMATOR_REGISTRY", {})
    return found


REFUSALS.append(refused.own_estimator("verl", "algorithm.adv_estimator", _registered, "verl"))


@REFUSALS.live(
    "padding_free",
    'padding="free" is asked for, and prompts that a group shares are not proven to be read once here '
    '(padding="auto" then reads them as verl does)',
    remedy='wrap with padding="padded"',
)
def _padding_free(trainer: Any, request: Request) -> Answer:
    return asked_in_vain(trainer, request) or False
