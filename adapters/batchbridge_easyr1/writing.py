"""A canonical spec as EasyR1's settings."""

from __future__ import annotations

from typing import Any

from batchbridge import Spec
from batchbridge.kit.clipping import native_bound
from batchbridge.kit.ranks import nodes_and_gpus
from batchbridge.kit.schedules import schedule_parts
from batchbridge.kit.writing import Problems
from batchbridge_easyr1.meaning import AGGREGATIONS, ESTIMATORS, KL_ESTIMATORS, LOSS_TYPES, RENAMED, STARTS_AT_ZERO
from batchbridge_easyr1.run import ABSENT
from batchbridge_easyr1.settings import (
    ACTOR,
    BATCH,
    BOUND,
    DATA,
    DYNAMIC,
    ESTIMATOR,
    FORWARD,
    GPUS,
    GROUP,
    LOSS_TYPE,
    MICRO,
    MINI_ROLLOUT,
    MODE,
    NEWEST,
    NODES,
    PASSES,
    PROMPT_TOKENS,
    PROMPTS,
    RESPONSE_TOKENS,
    ROLLOUT,
    holds,
    settings_of,
)


def settings_for(spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
    """EasyR1 `version`'s settings that say `spec`; what is overlooked comes out when `write` reads its own work."""
    values = _newest_settings(spec, problems)
    if holds(STARTS_AT_ZERO, version):
        problems.need(
            0.0 not in (spec.carried.warmup_steps, spec.carried.warmup_ratio),
            f"carried.warmup_steps = 0: without a warm-up easyr1 {version} trains its first rollout with a learning "
            "rate of 0, as 1 says",
            "carried.warmup_steps",
        )
        if spec.carried.warmup_steps == 1.0:
            values.pop(f"{ACTOR}optim.lr_warmup_steps")  # 0.3.0 has no such setting
    rows, written = settings_of(version), dict(values)
    for newest, older in RENAMED.items():
        if newest in values and newest not in rows:
            values[older] = values.pop(newest)
    for key in [key for key in values if key not in rows]:
        value = values.pop(key)
        if value != ABSENT.get(key):
            problems.no_setting(f"{key} = {value}: EasyR1 {version} has no such setting", key, written, NEWEST)
    return values


def _newest_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    values: dict[str, Any] = {}
    topology, rollout, step = spec.topology, spec.rollout, spec.optimizer_step
    group, completions = rollout.completions_per_prompt, step.completions_per_step
    if problems.need(
        topology.world_size >= 1, f"topology.world_size = {topology.world_size}: at least 1", "topology.world_size"
    ):
        values[NODES], values[GPUS] = nodes_and_gpus(topology.world_size)
    values[f"{ACTOR}ulysses_size"] = topology.context_parallel
    values[f"{ROLLOUT}tensor_parallel_size"] = 1
    values[GROUP], values[PASSES] = group, step.passes_per_rollout
    if problems.need(
        rollout.prompts_per_rollout is not None,
        "rollout.prompts_per_rollout is open: easyr1 needs it",
        "rollout.prompts_per_rollout",
    ):
        values[PROMPTS] = rollout.prompts_per_rollout
    if problems.need(
        completions is not None,
        "optimizer_step.completions_per_step is open: easyr1 needs it",
        "optimizer_step.completions_per_step",
    ):
        assert completions is not None
        if problems.need(
            group > 0 and completions % group == 0,
            f"optimizer_step.completions_per_step = {completions}: easyr1 counts whole groups of {group}",
            "optimizer_step.completions_per_step",
        ):
            values[BATCH] = completions // group
    values[MINI_ROLLOUT] = rollout.prompts_per_generation_batch
    values["algorithm.online_filtering"] = rollout.group_filter != "none"
    carried, optim = spec.carried, f"{ACTOR}optim."
    for name, key in (
        ("learning_rate", f"{optim}lr"),
        ("optimizer", f"{optim}strategy"),
        ("weight_decay", f"{optim}weight_decay"),
        ("warmup_ratio", f"{optim}lr_warmup_ratio"),
        ("max_prompt_tokens", PROMPT_TOKENS),
        ("max_completion_tokens", RESPONSE_TOKENS),
        ("temperature", f"{ROLLOUT}temperature"),
        ("top_p", f"{ROLLOUT}top_p"),
        ("top_k", f"{ROLLOUT}top_k"),
        ("precision", f"{ACTOR}fsdp.mp_param_dtype"),
    ):
        if getattr(carried, name) is not None:
            values[key] = getattr(carried, name)
    if carried.max_gradient_norm is not None:
        values[BOUND] = native_bound(carried.max_gradient_norm)
    if carried.warmup_steps and problems.need(
        carried.warmup_steps == int(carried.warmup_steps),
        "carried.warmup_steps: easyr1 takes whole rollouts",
        "carried.warmup_steps",
    ):
        values[f"{optim}lr_warmup_steps"] = int(carried.warmup_steps)
    if carried.beta1 is not None and carried.beta2 is not None:
        values[f"{optim}betas"] = [carried.beta1, carried.beta2]
    if carried.lr_schedule is not None:
        _write_schedule(carried.lr_schedule, values, problems)
    values |= micro_batch_settings(spec, problems)
    modes = {canonical: native for native, canonical in AGGREGATIONS.items()}
    aggregation = spec.loss.policy.aggregation
    if problems.need(
        aggregation in modes,
        f"loss.policy.aggregation = {aggregation}: easyr1 has {', '.join(modes)}",
        "loss.policy.aggregation",
    ):
        values[MODE] = modes[aggregation]
    names = [name for name, row in ESTIMATORS.items() if row[:2] == (spec.advantage.baseline, spec.advantage.scale)]
    if problems.need(
        bool(names),
        f"advantage.baseline = {spec.advantage.baseline} with scale = {spec.advantage.scale}: easyr1 has none such",
        "advantage.baseline",
    ):
        values[ESTIMATOR] = names[0]
    _write_objective(spec, values, problems)
    problems.need(spec.order.seed is not None, "order.seed is open: easyr1 always has one", "order.seed")
    values[f"{DATA}seed"] = spec.order.seed
    values[f"{DATA}shuffle"] = spec.order.prompt_shuffle != "none"
    horizon = spec.horizon
    problems.need(
        horizon.optimizer_steps is None,
        "horizon.optimizer_steps: easyr1 counts rollouts or epochs",
        "horizon.optimizer_steps",
    )
    values["trainer.max_steps"] = horizon.rollouts
    if horizon.epochs is not None and problems.need(
        horizon.epochs == int(horizon.epochs),
        f"horizon.epochs = {horizon.epochs}: easyr1 takes whole epochs",
        "horizon.epochs",
    ):
        values["trainer.total_epochs"] = int(horizon.epochs)
    return values


def _write_schedule(text: str, values: dict[str, Any], problems: Problems) -> None:
    try:
        name, arguments = schedule_parts(text)
    except ValueError as error:
        problems.add(f"carried.lr_schedule = {text}: {error}", "carried.lr_schedule")
        return
    known = name in ("constant", "cosine", "cosine_with_min_lr") and set(arguments) <= {"min_lr_rate"}
    if problems.need(
        known,
        f"carried.lr_schedule = {text}: easyr1 has constant, and cosine with min_lr_rate or none",
        "carried.lr_schedule",
    ):
        values[f"{ACTOR}optim.lr_scheduler_type"] = "constant" if name == "constant" else "cosine"
        if arguments:
            values[f"{ACTOR}optim.min_lr_ratio"] = arguments["min_lr_rate"]


def micro_batch_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    """What cuts micro-batches as `spec` says; a budget is a number of sequences of the greatest length."""
    micro, carried = spec.micro_batch, spec.carried
    values: dict[str, Any] = {DYNAMIC: micro.tokens_per_device is not None}
    size, forward = micro.completions_per_device, micro.forward_completions_per_device
    if micro.tokens_per_device is not None:
        longest = (carried.max_prompt_tokens or 512) + (carried.max_completion_tokens or 512)
        budgets = ", ".join(f"{path} = {value}" for path, value in _budgets(spec).items())
        problems.need(
            micro.tokens_per_device % longest == 0 and (micro.forward_tokens_per_device or 0) % longest == 0,
            f"{budgets}: easyr1's budgets are multiples of the longest sequence, {longest} tokens",
            *_budgets(spec),
        )
        size = micro.tokens_per_device // longest
        forward = None if micro.forward_tokens_per_device is None else micro.forward_tokens_per_device // longest
    if problems.need(
        size is not None,
        "micro_batch is open: easyr1 needs a size or a token budget",
        "micro_batch.completions_per_device",
    ):
        values[MICRO], values[FORWARD] = size, size if forward is None else forward
    return values


def _budgets(spec: Spec) -> dict[str, int]:
    named = {name: getattr(spec.micro_batch, name) for name in ("tokens_per_device", "forward_tokens_per_device")}
    return {f"micro_batch.{name}": value for name, value in named.items() if value is not None}


def _write_objective(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    surrogate = objective.surrogate or "ppo"
    levels: dict[str, dict[str, str]] = {}
    for name, row in LOSS_TYPES.items():
        levels.setdefault(row[0], {})[row[1]] = name
    if problems.need(
        surrogate in levels, f"objective.surrogate = {surrogate}: easyr1 has {', '.join(levels)}", "objective.surrogate"
    ):
        types = levels[surrogate]
        values[LOSS_TYPE] = types.get(objective.ratio_level or "", next(iter(types.values())))
    for name in ("low", "high"):
        if (bound := getattr(objective, f"clip_{name}")) is not None:
            values[f"{ACTOR}clip_ratio_{name}"] = bound
    if objective.dual_clip is not None:
        values[f"{ACTOR}clip_ratio_dual"] = objective.dual_clip
    place = objective.kl_placement or ("loss" if objective.kl_coefficient else "none")
    values["algorithm.disable_kl"] = place == "none"
    values["algorithm.use_kl_loss"] = place == "loss"
    if place != "none":
        if objective.kl_coefficient is not None:
            values["algorithm.kl_coef"] = objective.kl_coefficient
        if objective.kl_estimator is not None:
            native = {canonical: name for name, canonical in KL_ESTIMATORS.items()}
            if problems.need(
                objective.kl_estimator in native,
                f"objective.kl_estimator = {objective.kl_estimator}: easyr1 has {', '.join(native)}",
                "objective.kl_estimator",
            ):
                values["algorithm.kl_penalty"] = native[objective.kl_estimator]
