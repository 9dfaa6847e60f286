"""A canonical spec as verl's settings; what only carries over stands in `writing_carried`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from batchbridge import Spec
from batchbridge.kit import Advantage, MicroBatch, Objective, nearest_numbers
from batchbridge.kit.key_table import written_by
from batchbridge.kit.writing import Problems, nodes_and_gpus
from batchbridge_verl import distillation, terms
from batchbridge_verl import settings as tables
from batchbridge_verl.critic import write_critic
from batchbridge_verl.meaning import KL_KEYS, RESAMPLED, RESAMPLING
from batchbridge_verl.run import (
    BUDGET,
    DYNAMIC,
    FORWARD_BUDGET,
    GENERATION,
    GPUS,
    GROUP,
    MICRO,
    MINI,
    NODES,
    PROMPTS,
    THRESHOLD,
    TOTAL_EPOCHS,
    TRAINER_MODE,
)
from batchbridge_verl.settings import ACTOR, AGENT_WORKERS, PARALLEL, REFERENCE, ROLLOUT, holds
from batchbridge_verl.writing_carried import WritingTarget, write_carried


def settings_for(spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
    """The native settings that say `spec`, world size included; what they cannot say goes to `problems`, and whatever
    is overlooked here comes out when `write` reads its own work."""
    to = _target(spec, version)
    alone = written_by(tables.ALONE, spec, problems)
    values = {key: value for key, value in alone.items() if value is not None}
    of_loss = (_write_loss, _write_objective)
    for write in (_write_sizes, _write_order, _write_staleness, *of_loss, write_carried, write_critic):
        write(spec, to, values, problems)
    _write_generation(spec, to, values, problems)
    known, written = tables.defaults_of(version, to.engine), dict(values)
    older = f"{ACTOR}optim.warmup_style"
    for newer in (f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.lr_decay_style"):
        if newer in values and newer not in known and older in known:
            values[older] = values.pop(newer)
    for key in [key for key in values if not tables.reads(key, version, to.engine, known)]:
        # Of itself it holds; what does not shows when `write` reads its own work.
        if values[key] is not None and values[key] != tables.BY_KEY[key].default:
            reason = f"verl {version} has no setting {key} with the {to.engine} engine"
            problems.no_setting(reason, key, written, tables.NEWEST)
        del values[key]
    engine = {tables.ENGINE: to.engine} if to.engine != "fsdp" else {}
    return engine | {key: values[key] for key in tables.BY_KEY if key in values}


def _target(spec: Spec, version: str) -> WritingTarget:
    new = holds(">=0.8.0", version) or (holds(">=0.7.1", version) and spec.order.last_optimizer_step == "error")
    return WritingTarget(version, min(tables.engines_of(version), key=lambda engine: _lacks(engine, spec)), not new)


def _lacks(engine: str, spec: Spec) -> tuple[bool, bool, bool, bool]:
    """The parts of `spec` that an engine does not have, of those that tell the engines apart, the worst first: devices,
    schedule, optimizer, decay."""
    tensor, pipeline, _ = PARALLEL[engine]
    topology, carried = spec.topology, spec.carried
    devices = (tensor is None and topology.tensor_parallel > 1) or (pipeline is None and topology.pipeline_parallel > 1)
    schedule = None if carried.lr_schedule is None else carried.lr_schedule.partition(" ")[0]
    optimizer = carried.optimizer in (None, *terms.OPTIMIZERS[engine].values()) or engine == "fsdp"
    excluded = "biases_and_norms" if engine == "megatron" else "nothing"
    # Which parameters are left out of a decay of 0 means nothing.
    decay = carried.weight_decay == 0 or carried.weight_decay_excludes in (None, excluded)
    return devices, schedule not in (None, *terms.SCHEDULES[engine]), not optimizer, not decay


def _write_sizes(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    topology, rollout, step, micro = spec.topology, spec.rollout, spec.optimizer_step, spec.micro_batch
    world, group, completions = topology.world_size, rollout.completions_per_prompt, step.completions_per_step
    if problems.fits(world >= 1, "topology.world_size", "at least 1"):
        values[NODES], values[GPUS] = nodes_and_gpus(world)
    sizes = (topology.tensor_parallel, topology.pipeline_parallel, topology.context_parallel)
    values |= {key: size for key, size in zip(PARALLEL[to.engine], sizes, strict=True) if key is not None}
    if topology.context_parallel > 1 and to.engine == "fsdp":
        values["actor_rollout_ref.model.use_remove_padding"] = True
    values |= {f"{ROLLOUT}name": "vllm", f"{ROLLOUT}tensor_model_parallel_size": 1}
    problems.given(rollout.prompts_per_rollout, "rollout.prompts_per_rollout")
    if problems.given(completions, "optimizer_step.completions_per_step"):
        assert completions is not None
        mini = -(-completions // group) if group > 0 else 0
        replicas = topology.data_parallel_size
        floored = to.legacy and replicas > 0 and mini * group // replicas * replicas == completions
        if group > 0 and (completions % group == 0 or floored):
            values[MINI] = mini
        else:
            near = nearest_numbers(completions, multiple_of=group)
            groups = f"verl counts whole groups of {group}; fix: {' or '.join(map(str, near))}"
            problems.fits(False, "optimizer_step.completions_per_step", groups, near)
    if micro.tokens_per_device is not None:
        values |= budget_settings(micro)
        if to.engine == "megatron":
            values[MICRO] = 1  # read by the trainer's check alone: BB-VERL-013
    elif (size := micro.completions_per_device) is not None:
        forward = micro.forward_completions_per_device or size
        values |= {f"{group}log_prob_micro_batch_size_per_gpu": forward for group in (ROLLOUT, REFERENCE)}
        values[MICRO] = size
    else:
        unsaid = "micro_batch is open: verl needs a size or a token budget"
        one = {"micro_batch.completions_per_device": 1}
        problems.add(unsaid, "micro_batch.completions_per_device", nearest=(one,))


def _write_order(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    order, horizon = spec.order, spec.horizon
    values[f"{ACTOR}shuffle"] = spec.optimizer_step.rollout_shuffle == "completions"
    filters = ("replace_zero_variance", "none") if holds(">=0.9.0", to.version) else ("none",)
    filtered = (
        problems.fits(
            spec.rollout.group_filter in filters, "rollout.group_filter", f"verl has {' and '.join(filters)}", filters
        )
        and spec.rollout.group_filter != "none"
    )
    if filtered:
        values["algorithm.filter_groups.enable"] = True
        values["algorithm.filter_groups.metric"] = "reward"  # what the spec's filter goes by
    values["data.seed"] = None if order.seed == terms.TORCH_SEED else order.seed
    seed = ({"order.seed": terms.TORCH_SEED},)
    problems.need(order.seed is not None, "order.seed is open: verl always has one", "order.seed", nearest=seed)
    if order.last_optimizer_step == "error" and not filtered and holds(">=0.9.0", to.version):
        values["trainer.use_v1"] = False  # which alone ends at a part of a step, and reads no filter
    if not to.legacy and holds("<0.8.0", to.version):
        values["trainer.use_legacy_worker_impl"] = "disable"
    counts = "horizon.optimizer_steps: verl counts rollouts or epochs"
    problems.need(horizon.optimizer_steps is None, counts, "horizon.optimizer_steps")
    if horizon.epochs is not None:
        values[TOTAL_EPOCHS] = problems.whole(horizon.epochs, "horizon.epochs", "epochs")
    elif horizon.rollouts is not None:
        values[TOTAL_EPOCHS] = horizon.rollouts  # each has a rollout at least: they never end first


def _write_generation(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    """Prompts that are generated at once; workers of the agent loop that share a rollout's completions evenly, where
    verl's own number does not."""
    v1 = holds(">=0.9.0", to.version) and values.get("trainer.use_v1", True)
    portion, prompts, world = spec.rollout.prompts_per_generation_batch, values.get(PROMPTS), spec.topology.world_size
    if portion is not None and problems.fits(
        v1,
        "rollout.prompts_per_generation_batch",
        "None: RayPPOTrainer takes each fetched batch for a rollout",
        (None,),
    ):
        values[GENERATION] = portion
    if prompts and world >= 1 and holds("<0.5.0", to.version):
        near = nearest_numbers(prompts, multiple_of=world)
        dealt = f"verl 0.4 deals them out to {world} devices before they are repeated; fix: "
        problems.fits(prompts % world == 0, "rollout.prompts_per_rollout", dealt + " or ".join(map(str, near)), near)
    native = tables.BY_KEY[AGENT_WORKERS].default
    if v1 or holds("<0.7.0", to.version) or not (prompts and values.get(GROUP)):
        return
    rows = prompts * values[GROUP]
    if rows % native:
        values[AGENT_WORKERS] = next(count for count in range(native, 0, -1) if rows % count == 0)


def budget_settings(micro: MicroBatch) -> dict[str, Any]:
    """Settings that cut by the token budgets of `micro`; of forward-only passes as in training where none is given,
    through verl's own interpolations."""
    values: dict[str, Any] = {DYNAMIC: True, BUDGET: micro.tokens_per_device}
    if micro.forward_tokens_per_device is not None:
        values[FORWARD_BUDGET] = micro.forward_tokens_per_device
    return values


def resolved_budget_settings(micro: MicroBatch) -> dict[str, Any]:
    """The budget settings of a configuration whose interpolations are resolved: what follows the actor's settings is
    named, too.

    Source: verl 0.8.0 to 0.9.1 trainer/config/rollout/rollout.yaml, ref/ref.yaml; main_ppo resolves them.
    """
    forward = micro.forward_tokens_per_device or micro.tokens_per_device
    followers = {"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": forward}
    groups = (ROLLOUT, REFERENCE)
    return budget_settings(micro) | {group + name: value for group in groups for name, value in followers.items()}


def _write_staleness(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    staleness = spec.staleness
    if staleness.mode == "sync" or not problems.fits(
        staleness.mode in ("bounded", "unbounded") and holds(">=0.9.0", to.version),
        "staleness.mode",
        "settings of main_ppo say sync, and since 0.9.0 bounded and unbounded; one rollout ahead is another program, "
        "verl.experimental.one_step_off_policy.main_ppo",
    ):
        return
    problems.fits(
        staleness.unit == "rollouts", "staleness.unit", "verl counts the rollouts that a group spans", ("rollouts",)
    )
    bounded = staleness.mode == "bounded" and problems.need(
        staleness.maximum is not None,
        "staleness.maximum is open: bounded by nothing",
        "staleness.maximum",
        nearest=({"staleness.maximum": 1},),
    )
    values[TRAINER_MODE] = "colocate_async"
    values[THRESHOLD] = (staleness.maximum or 0) + 1 if bounded else None
    pads = "the V1 trainer, which alone generates ahead, pads"
    problems.fits(spec.order.last_optimizer_step != "error", "order.last_optimizer_step", pads, ("pad",))


def _write_loss(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    policy, modes, advantage = spec.loss.policy, _loss_modes_for(spec.objective), spec.advantage
    terms_of = {"loss.kl": spec.loss.kl, "loss.entropy": spec.loss.entropy}
    other = next((term for term in terms_of.values() if term not in (None, policy)), None)
    if other is not None and problems.need(
        bool(modes) and modes[0].insists_on(to.version) == policy.aggregation,
        "loss.kl, loss.entropy: verl's are as the policy's term, except beside sapo, geo_mean, and gspo before 0.9.1",
        "loss.kl",
        "loss.entropy",
        nearest=({path: None for path, term in terms_of.items() if term not in (None, policy)},),
    ):
        policy = other  # the loss mode takes its own, and loss_agg_mode is that of the other terms
    values[f"{ACTOR}loss_agg_mode"] = problems.word(policy.aggregation, "loss.policy.aggregation", terms.AGGREGATIONS)
    # Before 0.7.0 the response's width is the only constant.
    own = holds(">=0.7.0", to.version) or policy.constant != spec.carried.max_completion_tokens
    if policy.constant is not None and own:
        values[f"{ACTOR}loss_scale_factor"] = policy.constant
    names = list(_estimators_for(spec))
    none_such = f"advantage.baseline = {advantage.baseline} with scale = {advantage.scale}: verl has none such"
    if teacher := distillation.written(spec):
        values |= teacher
    elif problems.need(bool(names), none_such, "advantage.baseline", nearest=_advantages_near(advantage)):
        values["algorithm.adv_estimator"] = names[0]
        values["algorithm.norm_adv_by_std_in_grpo"] = advantage.scale == "group"
        if terms.ESTIMATORS[names[0]].needs and holds(">=0.9.0", to.version):
            values["trainer.use_v1"] = False
        if names[0].endswith("optimal_token_baseline"):
            values[tables.SQUARES] = True
        if RESAMPLING in spec.open_terms:
            values[RESAMPLED] = True


def _advantages_near(advantage: Advantage) -> Iterator[dict[str, Any]]:
    """The parts that an estimator has, the same baseline first, then the same scale."""
    rows = [row for row in terms.ESTIMATORS.values() if not row.open_term]
    rows.sort(key=lambda row: (row.baseline != advantage.baseline, row.scale not in (None, advantage.scale)))
    for row in rows:
        own = advantage.scale if advantage.scale in ("group", "none") else "group"
        yield {"advantage.baseline": row.baseline, "advantage.scale": row.scale or own}


def _estimators_for(spec: Spec) -> Iterator[str]:
    for row in terms.ESTIMATORS.values():
        scales = ("group", "none") if row.scale is None else (row.scale,)
        same = row.baseline == spec.advantage.baseline and spec.advantage.scale in scales
        if same and (not row.open_term or row.open_term in spec.open_terms):
            yield row.name


_CORRECTIONS = "algorithm.rollout_correction."
_CORRECTION = re.compile(r"(?:(\w+)_truncate \[-, (\S+)\])?(?:; )?(?:reject (\S+) (\S+))?")


def _loss_modes_for(objective: Objective) -> list[terms.LossMode]:
    surrogate, level = objective.surrogate or "ppo", objective.ratio_level
    same = [mode for mode in terms.LOSS_MODES.values() if mode.surrogate == surrogate]
    return [mode for mode in same if level in (None, mode.ratio_level)]


def _write_objective(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    objective, modes = spec.objective, _loss_modes_for(spec.objective)
    surrogate, level, dual = objective.surrogate or "ppo", objective.ratio_level, objective.dual_clip
    named = ", ".join(f"{mode.surrogate} ({mode.ratio_level})" for mode in terms.LOSS_MODES.values())
    others = f"objective.surrogate = {surrogate} with ratio_level = {level}: verl has {named}"
    near = sorted(terms.LOSS_MODES.values(), key=lambda mode: (mode.surrogate != surrogate, mode.surrogate != "ppo"))
    ways = ({"objective.surrogate": mode.surrogate, "objective.ratio_level": mode.ratio_level} for mode in near)
    if problems.need(bool(modes), others, "objective.surrogate", nearest=ways):
        values[f"{ACTOR}policy_loss.loss_mode"] = modes[0].name
        for path, bound in (("clip_low", objective.clip_low), ("clip_high", objective.clip_high)):
            if bound is not None:
                problems.fits(modes[0].clips, f"objective.{path}", f"verl's {surrogate} does not clip", (None,))
                values[f"{ACTOR}clip_ratio_{path.removeprefix('clip_')}"] = bound
        if dual is not None:
            problems.fits(dual > 1, "objective.dual_clip", "must be above 1", (None,))
            values[f"{ACTOR}clip_ratio_c"] = dual
    known = tables.defaults_of(to.version, to.engine)
    corrects = tables.reads(f"{_CORRECTIONS}rollout_is", to.version, to.engine, known)
    none = f"verl {to.version} has no {_CORRECTIONS.removesuffix('.')}"
    if objective.old_logprobs == "sampler" and problems.fits(
        corrects, "objective.old_logprobs", none, ("rollout_start",)
    ):
        values[f"{_CORRECTIONS}bypass_mode"] = True
        problems.need(
            objective.sampler_correction is None,
            f"objective.sampler_correction = {objective.sampler_correction} with old_logprobs = sampler: verl reads no "
            "correction beside bypass_mode",
            "objective.sampler_correction",
            nearest=({"objective.sampler_correction": None},),
        )
    if objective.sampler_correction is not None and problems.fits(
        corrects, "objective.sampler_correction", none, (None,)
    ):
        match = _CORRECTION.fullmatch(objective.sampler_correction)
        problems.fits(
            match is not None and bool(match[0]) and match[2] != "-",
            "objective.sampler_correction",
            "verl's are token_truncate and sequence_truncate, as in `token_truncate [-, 2.0]`, and `reject NAMES "
            "BOUNDS`",
            (None,),
        )
        names = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
        for name, text in zip(names, match.groups() if match else (), strict=bool(match)):
            if text is not None:
                values[f"{_CORRECTIONS}{name}"] = _number_or_text(text)
    _write_kl(objective, values, problems)


def _number_or_text(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return None if text == "None" else text


def _write_kl(objective: Objective, values: dict[str, Any], problems: Problems) -> None:
    place = objective.kl_placement or ("loss" if objective.kl_coefficient else "none")
    estimator = objective.kl_estimator
    values |= {switch: place == own for own, (switch, _, _) in KL_KEYS.items()}
    if place == "none":
        without = "objective.kl_coefficient without a kl_placement"
        ways = ({"objective.kl_placement": "loss"}, {"objective.kl_coefficient": 0.0})
        problems.need(not objective.kl_coefficient, without, "objective.kl_coefficient", nearest=ways)
        return
    _, factor, name = KL_KEYS[place]
    if objective.kl_coefficient is not None:
        values[factor] = objective.kl_coefficient
    if estimator is not None:
        plain, has = estimator.removesuffix("+"), f"verl has {', '.join(terms.KL_NAMES)}"
        if problems.fits(plain in terms.KL_NAMES, "objective.kl_estimator", has, terms.KL_NAMES):
            values[name] = terms.KL_NAMES[plain] + estimator[len(plain) :]
