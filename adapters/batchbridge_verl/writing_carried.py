"""What only carries over to verl's settings: optimizer, schedule, sampling, lengths, precision."""

from __future__ import annotations

from typing import Any, NamedTuple

from batchbridge import Spec
from batchbridge.kit.clipping import native_bound
from batchbridge.kit.schedules import WARMUP_START, schedule_parts
from batchbridge.kit.writing import Problems
from batchbridge_verl.settings import (
    ACTOR,
    ROLLOUT,
    holds,
)
from batchbridge_verl.terms import (
    BETAS,
    EPSILON,
    OPTIMIZERS,
    SCHEDULES,
)


class Target(NamedTuple):
    """What is written for: the version, the engine, and whether its workers are the legacy ones (`Run.legacy`)."""

    version: str
    engine: str
    legacy: bool


def write_carried(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    carried, optim = spec.carried, f"{ACTOR}optim."
    for name, key in (
        ("learning_rate", f"{optim}lr"),
        ("weight_decay", f"{optim}weight_decay"),
        ("max_prompt_tokens", "data.max_prompt_length"),
        ("max_completion_tokens", "data.max_response_length"),
        ("temperature", f"{ROLLOUT}temperature"),
        ("top_p", f"{ROLLOUT}top_p"),
        ("top_k", f"{ROLLOUT}top_k"),
    ):
        if getattr(carried, name) is not None:
            values[key] = getattr(carried, name)
    megatron = to.engine == "megatron"
    if (bound := carried.max_gradient_norm) is not None:
        key = f"{ACTOR}grad_clip" if to.legacy and to.engine == "fsdp" else f"{optim}clip_grad"
        values[key] = bound if megatron else native_bound(bound)
    _write_optimizer(spec, to, values, problems)
    if carried.lr_schedule is not None:
        _write_schedule(carried.lr_schedule, to, values, problems)
    if carried.warmup_ratio:
        values[f"{optim}lr_warmup_steps_ratio"] = carried.warmup_ratio
        problems.need(
            not carried.warmup_steps, "carried.warmup_ratio and warmup_steps are both given", "carried.warmup_ratio"
        )
    elif carried.warmup_steps:
        whole = carried.warmup_steps == int(carried.warmup_steps)
        if problems.need(
            whole, f"carried.warmup_steps = {carried.warmup_steps}: verl takes whole rollouts", "carried.warmup_steps"
        ):
            values[f"{optim}lr_warmup_steps"] = int(carried.warmup_steps)
    if carried.precision not in (None, "bf16"):
        here = {"fsdp": ("fp32", "fp16"), "megatron": ("fp16",)}.get(to.engine, ())
        problems.need(
            carried.precision in here,
            f"carried.precision = {carried.precision}: verl's {to.engine} engine has {', '.join(('bf16', *here))}",
            "carried.precision",
        )
        if megatron:
            values[f"{ACTOR}megatron.dtype"] = "float16"
        else:
            for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
                values[f"{ACTOR}fsdp_config.mixed_precision.{part}"] = carried.precision


def _write_optimizer(spec: Spec, to: Target, values: dict[str, Any], problems: Problems) -> None:
    carried, optim = spec.carried, f"{ACTOR}optim."
    if carried.optimizer is not None:
        names = {canonical: name for name, canonical in OPTIMIZERS[to.engine].items()}
        implementation, _, other = carried.optimizer.rpartition(".")
        if implementation and to.engine == "fsdp":
            values[f"{optim}optimizer_impl"], values[f"{optim}optimizer"] = implementation, other
        elif problems.need(
            carried.optimizer in names,
            f"carried.optimizer = {carried.optimizer}: verl's {to.engine} engine has {', '.join(names)}",
            "carried.optimizer",
        ):
            name = names[carried.optimizer]
            values[f"{optim}{'name' if to.engine == 'torchtitan' else 'optimizer'}"] = name
            if not holds({"fsdp": ">=0.6.1", "megatron": ">=0.4.1"}.get(to.engine, ""), to.version):
                # No key names it, and there is one only.
                problems.need(
                    carried.optimizer == "adamw",
                    f"carried.optimizer = {carried.optimizer}: it is adamw",
                    "carried.optimizer",
                )
                del values[f"{optim}optimizer"]
    betas = (carried.beta1, carried.beta2)
    whole = [default if beta is None else beta for beta, default in zip(betas, BETAS, strict=True)]
    override = f"{optim}override_optimizer_config."
    if to.engine == "megatron":
        # Megatron is handed no other betas than these.
        for name, beta, default in zip(("adam_beta1", "adam_beta2"), whole, BETAS, strict=True):
            values |= {f"{override}{name}": beta} if beta != default else {}
    elif betas != (None, None):
        values[f"{optim}betas"] = whole
    epsilon = carried.optimizer_epsilon
    if to.engine == "torchtitan" and epsilon is not None:
        values[f"{optim}eps"] = epsilon
    elif epsilon not in (None, EPSILON):
        problems.need(
            carried.optimizer in (None, "adamw", "adam", "adamax", "nadam", "radam") and to.engine != "veomni",
            f"carried.optimizer_epsilon = {epsilon}: verl hands none to {carried.optimizer} of its {to.engine} engine",
            "carried.optimizer_epsilon",
        )
        values[f"{override}{'adam_eps' if to.engine == 'megatron' else 'eps'}"] = epsilon


def _write_schedule(text: str, to: Target, values: dict[str, Any], problems: Problems) -> None:
    try:
        name, arguments = schedule_parts(text)
    except ValueError as error:
        problems.add(f"carried.lr_schedule = {text}: {error}", "carried.lr_schedule")
        return
    allowed = SCHEDULES[to.engine]
    problems.need(
        name in allowed, f"carried.lr_schedule = {name}: verl's engine has {', '.join(allowed)}", "carried.lr_schedule"
    )
    native = "cosine" if name == "cosine_with_min_lr" else name
    key = {"megatron": "lr_decay_style", "torchtitan": "decay_type"}.get(to.engine, "lr_scheduler_type")
    values[f"{ACTOR}optim.{key}"] = native
    floor = {"min_lr_rate": "min_lr_ratio", "num_cycles": "num_cycles", WARMUP_START: None}
    keys = floor if to.engine == "fsdp" else {}
    unknown = set(arguments) - set(keys)
    problems.need(
        not unknown, f"carried.lr_schedule: verl has no arguments {', '.join(sorted(unknown))}", "carried.lr_schedule"
    )
    for argument, own in keys.items():
        if own is not None and argument in arguments:
            values[f"{ACTOR}optim.{own}"] = arguments[argument]
