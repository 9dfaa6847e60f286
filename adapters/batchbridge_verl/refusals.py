"""Reasons for which `wrap` does not take a run of verl, and what it asks for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from batchbridge import Reading, Spec
from batchbridge.kit import CandidatePlan, Request, refused
from batchbridge.kit.refusals import Refusal, common, is_on, never, only_asked, own_spec, setting
from batchbridge.kit.token_budgets import cut_of, objection
from batchbridge_verl import distillation
from batchbridge_verl.ahead import OBSERVED_ALONE, ON_THE_TRAINERS_DEVICES
from batchbridge_verl.run import FULLY_ASYNC, Run
from batchbridge_verl.settings import ACTOR, CRITIC, ROLLOUT, holds
from batchbridge_verl.sharing import asked_in_vain
from batchbridge_verl.terms import AGGREGATIONS, KL_NAMES, LOSS_MODES, aggregations_of
from batchbridge_verl.writing import resolved_budget_settings

PROVEN_SURROGATES = ("vanilla", "gspo", "cispo", "sapo", "gpg", "dro")
"""Loss modes whose gradient is held against the oracle: tests/adapters/verl/native/test_gradients_verl.py."""
OFF = 1e30
"""A bound that is never reached: verl has no word for a clip that is off, and infinity times zero is no number."""


def is_v1(trainer: object) -> bool:
    """Whether `trainer` is a V1 trainer of any mode."""
    return _has_base(trainer, "verl.trainer.ppo.v1.trainer_base", "PPOTrainer")


def is_v0(trainer: object) -> bool:
    """Whether `trainer` is a `RayPPOTrainer`; EasyR1's stands in another module."""
    return _has_base(trainer, "verl.trainer.ppo.ray_trainer", "RayPPOTrainer")


def _has_base(trainer: object, module: str, name: str) -> bool:
    return any(base.__module__ == module and base.__name__ == name for base in type(trainer).__mro__)


def _actor(trainer: Any) -> Any:
    return trainer.config.actor_rollout_ref.actor


def _correction(trainer: Any, name: str) -> Any:
    return (trainer.config.algorithm.get("rollout_correction") or {}).get(name)


def loss_mode(spec: Spec) -> str | None:
    """The loss mode with the spec's surrogate and ratio: gspo is vanilla's surrogate over whole sequences."""
    wanted = spec.objective.surrogate, spec.objective.ratio_level
    return next((mode.name for mode in LOSS_MODES.values() if (mode.surrogate, mode.ratio_level) == wanted), None)


def _lacking(request: Request) -> bool:
    """Whether the installed version has no such loss mode, or aggregates it in another way than the spec does."""
    version = request.reading.framework_version or ""
    mode = LOSS_MODES.get(loss_mode(request.spec) or "")
    if mode is None:
        return False  # no release has it; "surrogate" says so
    return not holds(mode.versions, version) or request.spec.loss.policy.aggregation not in aggregations_of(
        mode, version
    )


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


SAMPLER, CORRECTION = "trainer.v1.sampler.", "algorithm.rollout_correction."
CORRECTING = ("rollout_is", "rollout_rs", "bypass_mode")
"""Settings of it that the sampler's log-probabilities act by."""
SCORED = f"{ROLLOUT}calculate_log_probs"
CORRECTED = "0.9.1"
"""The oldest release on which the sampler's log-probabilities, in a correction or as the old ones, are proven."""


def _unproven_correction(trainer: Any, request: Request, name: str) -> bool:
    if not _correction(trainer, name):
        return False
    scored = trainer.config.actor_rollout_ref.rollout.get("calculate_log_probs")
    return not scored or holds(f"<{CORRECTED}", str(request.reading.framework_version))


def _unread_beside_bypass(correction: Callable[[str], Any]) -> bool:
    """Whether a correction is asked for that reaches no loss. Source: verl 0.9.1 rollout_corr_helper.apply_bypass_mode,
    which names its loss in the driver's configuration, and the workers have their own."""
    asked = any(correction(name) is not None for name in ("rollout_is", "rollout_rs"))
    return bool(correction("bypass_mode")) and (asked or correction("loss_type") not in (None, "ppo_clip"))


def _of_tokens(spec: Spec) -> bool:
    """Whether single tokens have factors where ratios are those of sequences: what gradient they have is verl's own."""
    named = spec.objective.sampler_correction or ""
    return spec.objective.ratio_level == "sequence" and named.startswith("token_")


def _unproven_correction_of(reading: Reading, name: str) -> bool | None:
    version = run_of(reading).version
    if not (on := is_on(setting(reading, f"{CORRECTION}{name}"))) or holds(f"<{CORRECTED}", version):
        return on
    scored = is_on(setting(reading, SCORED, holds(">=0.9.0", version)))
    return None if scored is None else not scored


def _bypassed_of(reading: Reading) -> bool | None:
    if not (on := is_on(setting(reading, f"{CORRECTION}bypass_mode"))):
        return on
    asked = _unread_beside_bypass(lambda name: setting(reading, f"{CORRECTION}{name}"))
    if asked or run_of(reading).native[distillation.ENABLED]:
        return True
    return _unproven_correction_of(reading, "bypass_mode")


def run_of(reading: Reading) -> Run:
    """The run that a configuration is."""
    run: Run = reading.run  # type: ignore[attr-defined]  # a `RunReading` of this adapter
    return run


def _value(reading: Reading) -> bool:
    return reading.spec is not None and reading.spec.advantage.baseline == "value"


def _critic_elsewhere(run: Run) -> bool:
    """Whether the critic runs where no run was measured. Of the keys of its sequence parallelism its engine reads that
    of fsdp alone. Source: verl 0.8.0 to 0.9.1 FSDPCriticConfig, FSDPEngine.__init__."""
    return run[f"{CRITIC}strategy"] not in ("fsdp", "fsdp2") or run[f"{CRITIC}fsdp.ulysses_sequence_parallel_size"] > 1


def _candidates(reading: Reading) -> bool:
    """Whether rewards or timing decide what fills a rollout: a `CandidatePlan`."""
    assert reading.spec is not None, "what is not read is not asked"
    return reading.spec.rollout.group_filter != "none" or reading.spec.staleness.mode != "sync"


def _another_teacher(trainer: Any, request: Request) -> bool:
    version = str(request.reading.framework_version)
    if hasattr(trainer, "use_teacher_policy"):
        return distillation.refused(trainer, request.spec, version, v1=is_v1(trainer))
    # Source: verl 0.9.1 one_step_off_policy/ray_trainer.py, which reads nothing of a teacher.
    return bool(distillation.refused_as_read(request.reading, version, v1=False))


def _own_sampler(trainer: Any) -> bool:
    """Whether a data loader has a sampler that verl does not make. Source: verl 0.8.0 to 0.9.1 create_rl_sampler."""
    sampler = getattr(getattr(trainer, "train_dataloader", None), "sampler", None)
    return sampler is not None and type(sampler).__name__ not in ("RandomSampler", "SequentialSampler")


def _observed(reading: Reading) -> bool:
    """Whether a run whose generation is ahead is observed; see `apart` and `queued`."""
    run = run_of(reading)
    if run.entry == FULLY_ASYNC and any(is_on(setting(reading, key)) for key in ON_THE_TRAINERS_DEVICES):
        return False
    return run.entry in ("one_step_off", FULLY_ASYNC) and holds(">=0.9.1", run.version)


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "main_ppo_sync",
        "BatchBridge does not work with the trainer of verl.trainer.main_ppo_sync",
        only_asked,
        configured=lambda reading: (
            run_of(reading).entry == "main_ppo_sync" and holds("<0.9.0", run_of(reading).version)
        ),
        remedy="start verl.trainer.main_ppo",
    ),
    Refusal(
        "one_step_off",
        "the trainer of verl's one_step_off_policy is observed alone: its rollouts are generated one ahead, on devices "
        "of their own, and no plan of it is proven",
        lambda trainer, request: request.mode == "enforce" and run_of(request.reading).entry == "one_step_off",
        remedy="start verl.trainer.main_ppo",
    ),
    Refusal(
        "fully_async",
        OBSERVED_ALONE,
        lambda trainer, request: request.mode == "enforce" and run_of(request.reading).entry == FULLY_ASYNC,
        remedy="start verl.trainer.main_ppo",
    ),
    Refusal(
        "own_program",
        "BatchBridge works with a program of one's own where it builds verl's own trainer",
        only_asked,
        configured=lambda reading: None if run_of(reading).own_program else False,
        remedy="batchbridge run tells when the trainer is built",
    ),
    Refusal(
        "critic",
        "a critic is followed where the run is enforced and algorithm.adv_estimator is gae: its optimizer steps are "
        "held against the plan in no other mode, and what it learns beside another estimator is not proven",
        lambda trainer, request: (
            bool(trainer.use_critic) and (request.mode != "enforce" or trainer.config.algorithm.adv_estimator != "gae")
        ),
        configured=lambda reading: run_of(reading).critic and reading.native["algorithm.adv_estimator"] != "gae",
        remedy="algorithm.adv_estimator=gae, or critic.enable=False",
    ),
    Refusal(
        "critic_settings",
        "the spec has another critic than the trainer: GAE, its value loss and its learning rate are taken from the "
        "trainer's configuration; set algorithm.gamma, algorithm.lam and the keys below critic",
        lambda trainer, request: request.spec.critic != own_spec(request).critic,
        configured=never,
    ),
    Refusal(
        "critic_engine",
        "only a critic under FSDP is proven, without sequence parallelism",
        lambda trainer, request: bool(trainer.use_critic) and _critic_elsewhere(run_of(request.reading)),
        configured=lambda reading: run_of(reading).critic and _critic_elsewhere(run_of(reading)),
        remedy="critic.strategy=fsdp or fsdp2, with critic.fsdp.ulysses_sequence_parallel_size=1",
    ),
    Refusal(
        "critic_correction",
        "a critic beside a teacher, or beside corrections towards the sampler or its log-probabilities, is not proven: "
        "which tokens its value loss counts then is verl's own",
        lambda trainer, request: (
            bool(trainer.use_critic)
            and (
                bool(getattr(trainer, "use_teacher_policy", False))
                or any(_correction(trainer, name) for name in CORRECTING)
            )
        ),
        configured=lambda reading: (
            run_of(reading).critic
            and any(
                is_on(setting(reading, key))
                for key in (distillation.ENABLED, *(f"{CORRECTION}{name}" for name in CORRECTING))
            )
        ),
        remedy="algorithm.rollout_correction.rollout_is=null, rollout_rs=null, bypass_mode=False and "
        "distillation.enabled=False",
    ),
    Refusal(
        "value_baseline",
        "the spec's advantages need a critic, and this trainer has none",
        lambda trainer, request: request.spec.advantage.baseline == "value" and not trainer.use_critic,
        configured=lambda reading: _value(reading) and not run_of(reading).critic,
        remedy="algorithm.adv_estimator=grpo",
    ),
    refused.batch_scale("verl", remedy="algorithm.adv_estimator=grpo or rloo"),
    refused.tokens_per_device("verl", _no_budget),
    Refusal(
        "asynchronous",
        "generation that runs ahead works in one mode each: colocate_async with mode enforce, since a step of it has "
        "rows of several rollouts and its number is known to the plan alone; one_step_off_policy and "
        "fully_async_policy of verl 0.9.1 with mode observe, the latter where no engine generates on the trainer's own "
        "devices (use_trainer_do_validate, use_dynamic_resource_scheduling)",
        lambda trainer, request: (
            request.mode != "enforce"
            and own_spec(request).staleness.mode != "sync"
            and not (request.mode == "observe" and _observed(request.reading))
        ),
    ),
    Refusal(
        "initialised",
        "wrap a V1 trainer before init(): later is not proven",
        lambda trainer, request: is_v1(trainer) and hasattr(trainer, "actor_rollout_wg"),
        configured=never,
        remedy="wrap before init()",
    ),
    Refusal(
        "distillation",
        distillation.ALONE,
        lambda trainer, request: _another_teacher(trainer, request),
        configured=lambda reading: distillation.refused_as_read(
            reading, run_of(reading).version, v1=run_of(reading).v1
        ),
        remedy="distillation.enabled=False",
    ),
    refused.group_filter("algorithm.filter_groups, which the V1 trainer reads"),
    refused.staleness("trainer.v1.trainer_mode and trainer.v1.sampler.max_off_policy_threshold"),
    Refusal(
        "custom_sampler",
        "trainer.v1.sampler.custom_sampler chooses among candidates by its own rule",
        lambda trainer, request: (
            isinstance(request.plan, CandidatePlan)
            and bool((trainer.config.trainer.v1.sampler.get("custom_sampler") or {}).get("path"))
        ),
        configured=lambda reading: _candidates(reading) and is_on(setting(reading, f"{SAMPLER}custom_sampler.path")),
        remedy="leave trainer.v1.sampler.custom_sampler out",
    ),
    Refusal(
        "train_sampler",
        "the trainer was built with a sampler of its own (train_sampler), whose order no configuration says, and a "
        "wrapped run would have the plan's in its place",
        lambda trainer, request: is_v0(trainer) and _own_sampler(trainer),
        configured=never,
        remedy="leave train_sampler out, and bring the data file into that order, with data.shuffle=False",
    ),
    Refusal(
        "sync_refill_failed_groups",
        "trainer.v1.sampler.sync_refill_failed_groups replaces planned prompts by others; set it to False",
        lambda trainer, request: (
            is_v1(trainer) and bool(trainer.config.trainer.v1.sampler.get("sync_refill_failed_groups", False))
        ),
        configured=lambda reading: (
            run_of(reading).v1 and is_on(setting(reading, f"{SAMPLER}sync_refill_failed_groups"))
        ),
    ),
    Refusal(
        "critic_warmup",
        "trainer.critic_warmup leaves whole rollouts out of training, and no critic trains on them; set it to 0",
        lambda trainer, request: trainer.config.trainer.critic_warmup > 1 and not trainer.use_critic,
        configured=lambda reading: reading.native["trainer.critic_warmup"] > 1 and not run_of(reading).critic,
    ),
    Refusal(
        "surrogate",
        f"policy_loss.loss_mode: proven against the oracle are {', '.join(PROVEN_SURROGATES)}; geo_mean takes a mean "
        "over each micro-batch, so that its gradient grows with their number, clip_cov and kl_cov choose tokens by the "
        "statistics of each, dppo_tv and dppo_kl by a threshold that rounding decides",
        lambda trainer, request: loss_mode(request.spec) not in PROVEN_SURROGATES,
        remedy="actor_rollout_ref.actor.policy_loss.loss_mode=vanilla, or gspo for ratios of whole sequences",
    ),
    Refusal(
        "dro_beta",
        "the schema has no word for DRO's beta: it stays the trainer's own, which has none",
        lambda trainer, request: (
            request.spec.objective.surrogate == "dro" and _actor(trainer).policy_loss.get("dro_beta") is None
        ),
        configured=lambda reading: setting(reading, f"{ACTOR}policy_loss.dro_beta") is None,
        remedy="another policy_loss.loss_mode",
    ),
    refused.aggregation("verl's losses aggregate as", AGGREGATIONS.values()),
    Refusal(
        "release",
        "this release of verl lacks the loss mode or the aggregation: dro and token-sum came with 0.9.0, and gspo took "
        "the mean over sequences, whatever loss_agg_mode says, before 0.9.1; filtered groups and generation that runs "
        "ahead are proven on 0.9.1",
        lambda trainer, request: (
            _lacking(request)
            or (isinstance(request.plan, CandidatePlan) and holds("<0.9.1", str(request.reading.framework_version)))
        ),
    ),
    *(refusal for refusal in common("verl") if refusal.name != "sampler_logprobs"),
    Refusal(
        "sampler_logprobs",
        "the spec and the trainer differ in whether old log-probabilities are the sampler's: set "
        "algorithm.rollout_correction.bypass_mode",
        lambda trainer, request: (
            "sampler" in (request.spec.objective.old_logprobs, own_spec(request).objective.old_logprobs)
            and request.spec.objective.old_logprobs != own_spec(request).objective.old_logprobs
        ),
    ),
    refused.kl_estimator(
        f"verl's estimators are {', '.join(KL_NAMES)}", [f"{name}{plus}" for name in KL_NAMES for plus in ("", "+")]
    ),
    Refusal(
        "bypass_mode",
        "rollout_correction.bypass_mode is proven against the oracle on verl 0.9.1 alone, with "
        "actor_rollout_ref.rollout.calculate_log_probs=True and without a teacher; beside it verl reads neither "
        "rollout_is, rollout_rs nor loss_type=reinforce: set them to null, null and ppo_clip",
        lambda trainer, request: (
            bool(_correction(trainer, "bypass_mode"))
            and (
                _unproven_correction(trainer, request, "bypass_mode")
                or _unread_beside_bypass(functools.partial(_correction, trainer))
                or bool(getattr(trainer, "use_teacher_policy", False))
            )
        ),
        configured=_bypassed_of,
        remedy="algorithm.rollout_correction.bypass_mode=False",
    ),
    Refusal(
        "rejection",
        "rollout_correction.rollout_rs is proven against the oracle on verl 0.9.1 alone, and rejects nothing without "
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        lambda trainer, request: _unproven_correction(trainer, request, "rollout_rs"),
        configured=lambda reading: _unproven_correction_of(reading, "rollout_rs"),
        remedy="algorithm.rollout_correction.rollout_rs=null",
    ),
    Refusal(
        "sampler_correction",
        "rollout_correction.rollout_is is proven against the oracle on verl 0.9.1 alone, corrects nothing without "
        "actor_rollout_ref.rollout.calculate_log_probs=True, has one factor for a sequence where the ratio is one's "
        "(rollout_is=sequence with gspo), and stays the trainer's own; "
        'allow=("sampler_correction",) accepts it as verl computes it',
        lambda trainer, request: (
            request.spec.objective.sampler_correction != own_spec(request).objective.sampler_correction
            or _of_tokens(request.spec)
            or _unproven_correction(trainer, request, "rollout_is")
        ),
        allowable=True,
        configured=lambda reading: _unproven_correction_of(reading, "rollout_is"),
        remedy="algorithm.rollout_correction.rollout_is=null",
    ),
    Refusal(
        "group_size",
        "the spec has another number of completions per prompt; set actor_rollout_ref.rollout.n",
        lambda trainer, request: (
            is_v0(trainer) and request.spec.rollout.completions_per_prompt != trainer.config.actor_rollout_ref.rollout.n
        ),
        configured=never,
    ),
    Refusal(
        "unproven_engine",
        "only the FSDP engine is proven: of another one, no run was measured, and what it does between its loss and "
        'its update (clipping, for one) is not seen; allow=("unproven_engine",) measures what its loss weighs',
        lambda trainer, request: _actor(trainer).strategy not in ("fsdp", "fsdp2"),
        allowable=True,
        configured=lambda reading: (
            run_of(reading).engine != "fsdp" or setting(reading, f"{ACTOR}strategy") not in ("fsdp", "fsdp2")
        ),
        remedy="model_engine=dp, with actor_rollout_ref.actor.strategy=fsdp or fsdp2",
    ),
    Refusal(
        "padding_free",
        'padding="free" is asked for, and prompts that a group shares are not proven to be read once here '
        '(padding="auto" then reads them as verl does)',
        lambda trainer, request: asked_in_vain(trainer, request) is not None,
        detail=asked_in_vain,
        configured=never,
        remedy='wrap with padding="padded"',
    ),
    Refusal(
        "fp16",
        "the fp16 gradient scaler cannot leave out an update without tokens, and rescales on its own; use bf16",
        lambda trainer, request: own_spec(request).carried.precision == "fp16",
    ),
)
