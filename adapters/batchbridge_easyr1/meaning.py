"""What EasyR1's settings mean: a run to a canonical spec, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.clipping import canonical_bound, native_bound
from batchbridge.schedules import schedule_parts, schedule_text
from batchbridge.spec import Spec
from batchbridge.told import Told
from batchbridge.writing import Problems
from batchbridge_easyr1.run import ABSENT, Run
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
    NODES,
    PASSES,
    PROMPT_TOKENS,
    PROMPTS,
    RESPONSE_TOKENS,
    ROLLOUT,
    holds,
    settings_of,
)
from batchbridge_verl.run import nodes_and_gpus

AGGREGATIONS = {"token": "token_mean", "seq": "sequence_mean"}
LOSS_TYPES: Mapping[str, tuple[str, str, bool]] = {
    # loss_type -> surrogate, what the ratio is taken over, whether it clips. Source: EasyR1 core_algos (0.3.3.dev0)
    "default": ("ppo", "token", True),
    "gspo": ("ppo", "sequence", True),  # clipped as ppo is; what differs is what the ratio is taken over
    "gspo_token": ("gspo_token", "sequence", True),
    "cispo": ("cispo", "token", True),
    "sapo": ("sapo", "token", False),
}
DUAL_CLIPPED = ("ppo", "gspo_token")
ESTIMATORS: Mapping[str, tuple[str, str, float | None, int | None]] = {
    # adv_estimator -> baseline, scale, epsilon, ddof. Source: EasyR1 core_algos
    "grpo": ("group_mean", "group", 1e-6, 1),
    "rloo": ("leave_one_out", "none", None, None),
    "reinforce_plus_plus": ("none", "batch", None, 1),
    "gae": ("value", "batch", None, 1),
}
INEXPRESSIBLE = {
    "remax": "its baseline is the reward of a greedy completion",
    "grpo_passk": "only the best completion of a group has an advantage",
}
KL_ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}
RENAMED = {
    f"{ACTOR}ulysses_size": f"{ACTOR}ulysses_sequence_parallel_size",
    "trainer.total_epochs": "trainer.total_episodes",
}
"""Key from 0.3.1 on -> the key before."""
STARTS_AT_ZERO = "<0.3.3.dev0"
"""Versions whose schedule is min(1, tick / max(1, warm-up)): no warm-up is one of a tick. Source: EasyR1
torch_functional.get_constant_schedule_with_warmup; the learning rates in tests/adapters/easyr1/recorded."""
KL_CLAMP = 10.0
"""Bound of k3. Source: EasyR1 core_algos.compute_kl."""


def meaning(run: Run) -> dict[str, Told] | None:
    """Canonical field (dotted) -> what the run says; None where sizes, loss or advantages are left open."""
    aggregation = AGGREGATIONS.get(run[MODE])
    loss = LOSS_TYPES.get(run[LOSS_TYPE], LOSS_TYPES["default"])  # an unknown one is the default: BB-EZR1-028
    estimator = ESTIMATORS.get(run[ESTIMATOR])
    if aggregation is None or estimator is None or not run.plain or run.completions_per_step < 1:
        return None
    baseline, scale, epsilon, ddof = estimator
    told = {
        "topology.world_size": Told(run.world, None, f"{NODES} x {GPUS} = {run.world}"),
        "topology.context_parallel": Told(run[run.ulysses_key], run.ulysses_key),
        "rollout.prompts_per_rollout": Told(run[PROMPTS], PROMPTS),
        "rollout.completions_per_prompt": Told(run[GROUP], GROUP),
        "optimizer_step.completions_per_step": Told(
            run.completions_per_step,
            None,
            f"{BATCH} {run[BATCH]} x {GROUP} {run[GROUP]} / {run.replicas} replicas, floored, = {run.share} on each",
        ),
        "optimizer_step.passes_per_rollout": Told(run[PASSES], PASSES),
        "loss.policy.aggregation": Told(aggregation, MODE if MODE in run.native else None, "token mean"),
        "advantage.baseline": Told(baseline, ESTIMATOR),
        "advantage.scale": Told(scale, None, f"{run[ESTIMATOR]} scales so"),
        "advantage.epsilon": Told(epsilon, None, "fixed in core_algos"),
        "advantage.ddof": Told(ddof, None, "fixed in core_algos"),
        "order.seed": Told(run[f"{DATA}seed"], f"{DATA}seed"),
        "order.prompt_shuffle": Told("epoch_permutation" if run[f"{DATA}shuffle"] else "none", f"{DATA}shuffle"),
        "order.last_rollout": Told("drop", None, "the data loader drops an epoch's incomplete batch"),
        "order.last_optimizer_step": Told("error", None, "DataProto.split asserts whole mini-batches"),
        "horizon.lr_tick": Told("rollout", None, "the scheduler steps once per update of the actor"),
    }
    if run[MINI_ROLLOUT] is not None:
        told["rollout.prompts_per_generation_batch"] = Told(run[MINI_ROLLOUT], MINI_ROLLOUT)
    if run["algorithm.online_filtering"]:
        told["rollout.group_filter"] = Told("drop_zero_variance", "algorithm.online_filtering")
    if run["trainer.max_steps"] is not None:
        told["horizon.rollouts"] = Told(run["trainer.max_steps"], "trainer.max_steps")
    else:
        told["horizon.epochs"] = Told(float(run[run.epochs_key]), run.epochs_key)
    told |= _micro_batch(run)
    told |= {f"objective.{name}": entry for name, entry in _objective(run, loss).items()}
    told |= {f"carried.{name}": entry for name, entry in _carried(run).items()}
    return told


def _micro_batch(run: Run) -> dict[str, Told]:
    same = run[FORWARD] == run[MICRO]
    if not run[DYNAMIC]:
        told = {"micro_batch.completions_per_device": Told(run[MICRO], MICRO)}
        return told if same else {**told, "micro_batch.forward_completions_per_device": Told(run[FORWARD], FORWARD)}
    formula = f"x ({PROMPT_TOKENS} + {RESPONSE_TOKENS} = {run.longest})"
    told = {"micro_batch.tokens_per_device": Told(run[MICRO] * run.longest, None, f"{MICRO} {run[MICRO]} {formula}")}
    if not same:
        told["micro_batch.forward_tokens_per_device"] = Told(
            run[FORWARD] * run.longest, None, f"{FORWARD} {run[FORWARD]} {formula}"
        )
    return told


def _objective(run: Run, loss: tuple[str, str, bool]) -> dict[str, Told]:
    surrogate, level, clips = loss
    told = {
        "surrogate": Told(surrogate, LOSS_TYPE if LOSS_TYPE in run.native else None, "the only loss"),
        "ratio_level": Told(level, None, f"loss_type {run[LOSS_TYPE]}"),
        "old_logprobs": Told("rollout_start", None, "computed once, before the first update"),
        "entropy_coefficient": Told(0.0, None, "entropy is a metric only"),
        "nonfinite_step": Told("skip", None, "the optimizer step is left out when the norm is not finite"),
    }
    if clips:
        for side in ("low", "high"):
            told[f"clip_{side}"] = Told(run[f"{ACTOR}clip_ratio_{side}"], f"{ACTOR}clip_ratio_{side}")
    if surrogate in DUAL_CLIPPED:
        told["dual_clip"] = Told(run[f"{ACTOR}clip_ratio_dual"], f"{ACTOR}clip_ratio_dual")
    if run["algorithm.disable_kl"]:
        told["kl_placement"] = Told("none", "algorithm.disable_kl")
        told["kl_coefficient"] = Told(0.0, None, "algorithm.disable_kl")
        return told
    estimator = KL_ESTIMATORS.get(run["algorithm.kl_penalty"], run["algorithm.kl_penalty"])
    told["kl_placement"] = Told("loss" if run["algorithm.use_kl_loss"] else "reward", "algorithm.use_kl_loss")
    told["kl_coefficient"] = Told(run["algorithm.kl_coef"], "algorithm.kl_coef")
    told["kl_estimator"] = Told(estimator, "algorithm.kl_penalty")
    if estimator == "k3":
        told["kl_clamp"] = Told(KL_CLAMP, None, "fixed in core_algos.compute_kl")
    return told


def _carried(run: Run) -> dict[str, Told]:
    optim = f"{ACTOR}optim."
    betas = run[f"{optim}betas"]
    two = len(betas) == 2 and all(isinstance(beta, (int, float)) for beta in betas)
    schedule = str(run[f"{optim}lr_scheduler_type"])
    if schedule == "cosine":
        schedule = schedule_text("cosine_with_min_lr", {"min_lr_rate": run[f"{optim}min_lr_ratio"] or 0.0})
    told = {
        "learning_rate": Told(run[f"{optim}lr"], f"{optim}lr"),
        "lr_schedule": Told(schedule, None, f"{optim}lr_scheduler_type, {optim}min_lr_ratio"),
        "optimizer": Told(run[f"{optim}strategy"], f"{optim}strategy"),
        "beta1": Told(float(betas[0]) if two else None, None, f"{optim}betas"),
        "beta2": Told(float(betas[1]) if two else None, None, f"{optim}betas"),
        "optimizer_epsilon": Told(1e-8, None, "torch's default"),
        "weight_decay": Told(run[f"{optim}weight_decay"], f"{optim}weight_decay"),
        "weight_decay_excludes": Told("nothing", None, "one group of parameters"),
        "max_gradient_norm": Told(canonical_bound(run[BOUND]), BOUND),
        "dropout": Told("on", None, "as the model's configuration says"),
        "max_prompt_tokens": Told(run[PROMPT_TOKENS], PROMPT_TOKENS),
        "max_completion_tokens": Told(run[RESPONSE_TOKENS], RESPONSE_TOKENS),
        "temperature": Told(run[f"{ROLLOUT}temperature"], f"{ROLLOUT}temperature"),
        "top_p": Told(run[f"{ROLLOUT}top_p"], f"{ROLLOUT}top_p"),
        "top_k": Told(run[f"{ROLLOUT}top_k"], f"{ROLLOUT}top_k"),
        "precision": Told(run[f"{ACTOR}fsdp.mp_param_dtype"], f"{ACTOR}fsdp.mp_param_dtype"),
    }
    steps, share = run[f"{optim}lr_warmup_steps"], run[f"{optim}lr_warmup_ratio"]
    if steps:
        told["warmup_steps"] = Told(float(steps), None, f"{optim}lr_warmup_steps")
    elif steps is None and share:
        told["warmup_ratio"] = Told(share, f"{optim}lr_warmup_ratio")
    elif holds(STARTS_AT_ZERO, run.version):
        told["warmup_steps"] = Told(1.0, None, "without a warm-up the first rollout's learning rate is 0")
    else:
        told["warmup_steps"] = Told(0.0, None, f"{optim}lr_warmup_ratio is 0")
    return told


def settings_for(spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
    """EasyR1 `version`'s settings that say `spec`; what is overlooked comes out when `write` reads its own work."""
    values = _newest_settings(spec, problems)
    if holds(STARTS_AT_ZERO, version):
        problems.need(
            0.0 not in (spec.carried.warmup_steps, spec.carried.warmup_ratio),
            f"carried.warmup_steps = 0: without a warm-up easyr1 {version} trains its first rollout with a learning "
            "rate of 0, as 1 says",
        )
        if spec.carried.warmup_steps == 1.0:
            values.pop(f"{ACTOR}optim.lr_warmup_steps")  # 0.3.0 has no such setting
    rows = settings_of(version)
    for newest, older in RENAMED.items():
        if newest in values and newest not in rows:
            values[older] = values.pop(newest)
    for key in [key for key in values if key not in rows]:
        value = values.pop(key)
        problems.need(value == ABSENT.get(key), f"{key} = {value}: EasyR1 {version} has no such setting")
    return values


def _newest_settings(spec: Spec, problems: Problems) -> dict[str, Any]:
    values: dict[str, Any] = {}
    topology, rollout, step = spec.topology, spec.rollout, spec.optimizer_step
    group, completions = rollout.completions_per_prompt, step.completions_per_step
    if problems.need(topology.world_size >= 1, f"topology.world_size = {topology.world_size}: at least 1"):
        values[NODES], values[GPUS] = nodes_and_gpus(topology.world_size)
    values[f"{ACTOR}ulysses_size"] = topology.context_parallel
    values[f"{ROLLOUT}tensor_parallel_size"] = 1
    values[GROUP], values[PASSES] = group, step.passes_per_rollout
    if problems.need(rollout.prompts_per_rollout is not None, "rollout.prompts_per_rollout is open: easyr1 needs it"):
        values[PROMPTS] = rollout.prompts_per_rollout
    if problems.need(completions is not None, "optimizer_step.completions_per_step is open: easyr1 needs it"):
        assert completions is not None
        if problems.need(
            group > 0 and completions % group == 0,
            f"optimizer_step.completions_per_step = {completions}: easyr1 counts whole groups of {group}",
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
        carried.warmup_steps == int(carried.warmup_steps), "carried.warmup_steps: easyr1 takes whole rollouts"
    ):
        values[f"{optim}lr_warmup_steps"] = int(carried.warmup_steps)
    if carried.beta1 is not None and carried.beta2 is not None:
        values[f"{optim}betas"] = [carried.beta1, carried.beta2]
    if carried.lr_schedule is not None:
        _write_schedule(carried.lr_schedule, values, problems)
    values |= micro_batch_settings(spec, problems)
    modes = {canonical: native for native, canonical in AGGREGATIONS.items()}
    aggregation = spec.loss.policy.aggregation
    if problems.need(aggregation in modes, f"loss.policy.aggregation = {aggregation}: easyr1 has {', '.join(modes)}"):
        values[MODE] = modes[aggregation]
    names = [name for name, row in ESTIMATORS.items() if row[:2] == (spec.advantage.baseline, spec.advantage.scale)]
    if problems.need(
        bool(names),
        f"advantage.baseline = {spec.advantage.baseline} with scale = {spec.advantage.scale}: easyr1 has none such",
    ):
        values[ESTIMATOR] = names[0]
    _write_objective(spec, values, problems)
    problems.need(spec.order.seed is not None, "order.seed is open: easyr1 always has one")
    values[f"{DATA}seed"] = spec.order.seed
    values[f"{DATA}shuffle"] = spec.order.prompt_shuffle != "none"
    horizon = spec.horizon
    problems.need(horizon.optimizer_steps is None, "horizon.optimizer_steps: easyr1 counts rollouts or epochs")
    values["trainer.max_steps"] = horizon.rollouts
    if horizon.epochs is not None and problems.need(
        horizon.epochs == int(horizon.epochs), f"horizon.epochs = {horizon.epochs}: easyr1 takes whole epochs"
    ):
        values["trainer.total_epochs"] = int(horizon.epochs)
    return values


def _write_schedule(text: str, values: dict[str, Any], problems: Problems) -> None:
    try:
        name, arguments = schedule_parts(text)
    except ValueError as error:
        problems.append(f"carried.lr_schedule = {text}: {error}")
        return
    known = name in ("constant", "cosine", "cosine_with_min_lr") and set(arguments) <= {"min_lr_rate"}
    if problems.need(known, f"carried.lr_schedule = {text}: easyr1 has constant, and cosine with min_lr_rate or none"):
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
        problems.need(
            micro.tokens_per_device % longest == 0 and (micro.forward_tokens_per_device or 0) % longest == 0,
            f"{_budgets(spec)}: easyr1's budgets are multiples of the longest sequence, {longest} tokens",
        )
        size = micro.tokens_per_device // longest
        forward = None if micro.forward_tokens_per_device is None else micro.forward_tokens_per_device // longest
    if problems.need(size is not None, "micro_batch is open: easyr1 needs a size or a token budget"):
        values[MICRO], values[FORWARD] = size, size if forward is None else forward
    return values


def _budgets(spec: Spec) -> str:
    named = {name: getattr(spec.micro_batch, name) for name in ("tokens_per_device", "forward_tokens_per_device")}
    return ", ".join(f"micro_batch.{name} = {value}" for name, value in named.items() if value is not None)


def _write_objective(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    surrogate = objective.surrogate or "ppo"
    levels: dict[str, dict[str, str]] = {}
    for name, row in LOSS_TYPES.items():
        levels.setdefault(row[0], {})[row[1]] = name
    if problems.need(surrogate in levels, f"objective.surrogate = {surrogate}: easyr1 has {', '.join(levels)}"):
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
            ):
                values["algorithm.kl_penalty"] = native[objective.kl_estimator]
