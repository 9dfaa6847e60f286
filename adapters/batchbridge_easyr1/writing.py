"""A canonical spec as EasyR1's settings."""

from __future__ import annotations

from typing import Any

from batchbridge import Spec
from batchbridge.kit import MicroBatch, nearest_numbers
from batchbridge.kit.even_sizes import near_sequences
from batchbridge.kit.key_table import written_by
from batchbridge.kit.score_ranges import ALIKE
from batchbridge.kit.writing import Problems, nodes_and_gpus
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.meaning import ENDS_WITH_EPOCHS, ESTIMATORS, LOSS_TYPES, RENAMED, STARTS_AT_ZERO
from batchbridge_easyr1.run import ABSENT
from batchbridge_easyr1.settings import KL_ESTIMATORS, NEWEST, holds, settings_of


def settings_for(spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
    """EasyR1 `version`'s settings that say `spec`; what is overlooked comes out when `write` reads its own work."""
    values = _newest_settings(spec, problems)
    if holds(STARTS_AT_ZERO, version):
        none = f"carried.warmup_steps = 0: without a warm-up easyr1 {version} trains its first rollout with a learning "
        warms_up = 0.0 not in (spec.carried.warmup_steps, spec.carried.warmup_ratio)
        one = {"carried.warmup_steps": 1.0, "carried.warmup_ratio": None}
        problems.need(warms_up, f"{none}rate of 0, as 1 says", "carried.warmup_steps", nearest=(one,))
        if spec.carried.warmup_steps == 1.0:
            values.pop(f"{names.ACTOR}optim.lr_warmup_steps")  # 0.3.0 has no such setting
    if holds(ENDS_WITH_EPOCHS, version) and spec.horizon.epochs is None:
        values["trainer.total_epochs"] = spec.horizon.rollouts
    rows, written = settings_of(version), dict(values)
    budget = spec.micro_batch.tokens_per_device
    if budget is not None and names.DYNAMIC not in rows:
        values.pop(names.DYNAMIC)
        has = f"micro_batch.tokens_per_device = {budget}: EasyR1 {version} cuts by numbers of completions alone"
        fixed = {"micro_batch.": MicroBatch(completions_per_device=near_sequences(budget, _longest(spec), spec))}
        problems.add(has, "micro_batch.tokens_per_device", nearest=(fixed,))
    for newest, older in RENAMED.items():
        if newest in values and newest not in rows:
            values[older] = values.pop(newest)
    for key in [key for key in values if key not in rows]:
        value = values.pop(key)
        if value != ABSENT.get(key):
            problems.no_setting(f"{key} = {value}: EasyR1 {version} has no such setting", key, written, NEWEST)
    return {key: values[key] for key in rows if key in values}


def _newest_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    rollout, step, carried, horizon = spec.rollout, spec.optimizer_step, spec.carried, spec.horizon
    values = written_by(settings_of(NEWEST).values(), spec, problems)
    if problems.fits(spec.topology.world_size >= 1, "topology.world_size", "at least 1"):
        values[names.NODES], values[names.GPUS] = nodes_and_gpus(spec.topology.world_size)
    values[f"{names.ROLLOUT}tensor_parallel_size"] = 1
    problems.given(rollout.prompts_per_rollout, "rollout.prompts_per_rollout")
    group, completions = rollout.completions_per_prompt, step.completions_per_step
    path = "optimizer_step.completions_per_step"
    groups, whole = f"easyr1 counts whole groups of {group}", group > 0 and (completions or 0) % group == 0
    whole_groups = nearest_numbers(completions or 0, multiple_of=group)
    if problems.given(completions, path) and problems.fits(whole, path, groups, whole_groups):
        values[names.BATCH] = (completions or 0) // group
    filters, has = ("replace_zero_variance", "none"), "easyr1 has none and replace_zero_variance"
    problems.fits(rollout.group_filter in filters, "rollout.group_filter", has, filters)
    values[names.FILTER] = rollout.group_filter == "replace_zero_variance"
    if values[names.FILTER]:
        values[names.FILTER_LOW], values[names.FILTER_HIGH] = ALIKE
    if carried.warmup_ratio is not None:
        values[names.WARMUP_SHARE] = carried.warmup_ratio
    if carried.warmup_steps:
        values[names.WARMUP_STEPS] = problems.whole(carried.warmup_steps, "carried.warmup_steps", "rollouts")
    if carried.beta1 is not None and carried.beta2 is not None:
        values[f"{names.ACTOR}optim.betas"] = [carried.beta1, carried.beta2]
    if carried.lr_schedule is not None:
        _write_schedule(carried.lr_schedule, values, problems)
    values |= micro_batch_settings(spec, problems)
    baseline, scale = spec.advantage.baseline, spec.advantage.scale
    known = {name: row for name, row in ESTIMATORS.items() if name != "gae"}  # which cannot run: BB-EZR1-024
    alone = rollout.completions_per_prompt == 1  # no group to compare with
    estimators = [name for name, row in known.items() if row[:2] == (baseline, scale)]
    none_such = f"advantage.baseline = {baseline} with scale = {scale}: easyr1 has none such"
    if estimators and alone and baseline != "none":
        none_such = f"advantage.baseline = {baseline}: easyr1's {estimators.pop()} compares the completions of a prompt"
    near = sorted(known.values(), key=lambda row: (alone and row[0] != "none", row[1] != scale, row[0] != baseline))
    ways = ({"advantage.baseline": row[0], "advantage.scale": row[1]} for row in near)
    if problems.need(bool(estimators), none_such, "advantage.baseline", nearest=ways):
        values[names.ESTIMATOR] = estimators[0]
    _write_objective(spec, values, problems)
    seed = ({"order.seed": settings_of(NEWEST)["data.seed"].default},)
    problems.need(spec.order.seed is not None, "order.seed is open: easyr1 always has one", "order.seed", nearest=seed)
    counts = "horizon.optimizer_steps: easyr1 counts rollouts or epochs"
    problems.need(horizon.optimizer_steps is None, counts, "horizon.optimizer_steps")
    if horizon.epochs is not None:
        values["trainer.total_epochs"] = problems.whole(horizon.epochs, "horizon.epochs", "epochs")
    return values


def _write_schedule(text: str, values: dict[str, Any], problems: Problems) -> None:
    if (parts := problems.schedule(text)) is None:
        return
    name, arguments = parts
    known = name in ("constant", "cosine", "cosine_with_min_lr") and set(arguments) <= {"min_lr_rate"}
    has = "easyr1 has constant, and cosine with min_lr_rate or none"
    near = ("cosine", "constant") if name.startswith("cosine") else ("constant", "cosine")
    if problems.fits(known, "carried.lr_schedule", has, near):
        values[f"{names.ACTOR}optim.lr_scheduler_type"] = "constant" if name == "constant" else "cosine"
        if arguments:
            values[f"{names.ACTOR}optim.min_lr_ratio"] = arguments["min_lr_rate"]


def micro_batch_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    """Settings that cut micro-batches as `spec` says. A budget is a number of sequences of the greatest length; devices
    that share sequences have a part of it each, rounded up."""
    micro, shared = spec.micro_batch, spec.topology.context_parallel
    values: dict[str, Any] = {names.DYNAMIC: micro.tokens_per_device is not None}
    size, forward = micro.completions_per_device, micro.forward_completions_per_device
    longest = _longest(spec)
    if longest > settings_of(NEWEST)[names.ENGINE_TOKENS].default:  # vLLM has to take the longest sequence at a time
        values[names.ENGINE_TOKENS] = longest
    if micro.tokens_per_device is not None:
        budgets = _budgets(spec)
        settings = ", ".join(f"{path} = {value}" for path, value in budgets.items())
        by = f", over {shared} devices" if shared > 1 else ""
        whole = all(value * shared % longest < shared for value in budgets.values())
        multiples = f"{settings}: easyr1's budgets are multiples of the longest sequence, {longest} tokens{by}"
        near = {path: _near_budget(value, longest, spec) for path, value in budgets.items()}
        problems.need(whole, multiples, *budgets, nearest=(near,))
        size, forward = micro.tokens_per_device * shared // longest, micro.forward_tokens_per_device
        forward = None if forward is None else forward * shared // longest
    is_open = "micro_batch is open: easyr1 needs a size or a token budget"
    own = {"micro_batch.completions_per_device": settings_of(NEWEST)[names.MICRO].default}
    if problems.need(size is not None, is_open, "micro_batch.completions_per_device", nearest=(own,)):
        values[names.MICRO], values[names.FORWARD] = size, size if forward is None else forward
    return values


def _near_budget(tokens: int, longest: int, spec: Spec) -> int:
    """The nearest budget that is a number of the longest sequences, which divides what each device trains on."""
    return -(-near_sequences(tokens, longest, spec) * longest // spec.topology.context_parallel)


def _longest(spec: Spec) -> int:
    return (spec.carried.max_prompt_tokens or 512) + (spec.carried.max_completion_tokens or 512)


def _budgets(spec: Spec) -> dict[str, int]:
    named = {name: getattr(spec.micro_batch, name) for name in ("tokens_per_device", "forward_tokens_per_device")}
    return {f"micro_batch.{name}": value for name, value in named.items() if value is not None}


_SURROGATES = dict.fromkeys(row[0] for row in LOSS_TYPES.values())


def _write_objective(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    types = {name: row[1] for name, row in LOSS_TYPES.items() if row[0] == (objective.surrogate or "ppo")}
    if problems.fits(bool(types), "objective.surrogate", f"easyr1 has {', '.join(_SURROGATES)}", _SURROGATES):
        fitting = [name for name, level in types.items() if level == objective.ratio_level]
        values[names.LOSS_TYPE] = [*fitting, *types][0]
    place = objective.kl_placement or ("loss" if objective.kl_coefficient else "none")
    values["algorithm.disable_kl"] = place == "none"
    values["algorithm.use_kl_loss"] = place == "loss"
    if place != "none" and objective.kl_coefficient is not None:
        values["algorithm.kl_coef"] = objective.kl_coefficient
    if place != "none" and objective.kl_estimator is not None:
        word = problems.word(objective.kl_estimator, "objective.kl_estimator", KL_ESTIMATORS)
        values["algorithm.kl_penalty"] = word
