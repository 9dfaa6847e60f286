"""Values that only carry over to verl's settings: optimizer, schedule, sampling, lengths, precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from batchbridge import Spec
from batchbridge.kit.clipping import native_bound
from batchbridge.kit.schedules import WARMUP_START
from batchbridge_verl.settings import ACTOR
from batchbridge_verl.terms import BETAS, EPSILON, OPTIMIZERS, SCHEDULES, optimizer_key

if TYPE_CHECKING:
    from batchbridge.kit.writing import Problems

_OPTIM = f"{ACTOR}optim."
_OVERRIDE = f"{_OPTIM}override_optimizer_config."


class WritingTarget(NamedTuple):
    """The target of writing: the version, the engine, and whether its workers are the legacy ones (`Run.legacy`)."""

    version: str
    engine: str
    legacy: bool


def write_carried(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    """Writes them; what `written_by` has written is there already."""
    carried, megatron = spec.carried, to.engine == "megatron"
    for name, value in (("lr", carried.learning_rate), ("weight_decay", carried.weight_decay)):
        if value is not None:
            values[f"{_OPTIM}{name}"] = value
    if (bound := carried.max_gradient_norm) is not None:
        key = f"{ACTOR}grad_clip" if to.legacy and to.engine == "fsdp" else f"{_OPTIM}clip_grad"
        values[key] = bound if megatron else native_bound(bound)
    _write_optimizer(spec, to, values, problems)
    if carried.lr_schedule is not None:
        _write_schedule(carried.lr_schedule, to, values, problems)
    if carried.warmup_ratio:
        values[f"{_OPTIM}lr_warmup_steps_ratio"] = carried.warmup_ratio
        both = "carried.warmup_ratio and warmup_steps are both given"
        ways = ({"carried.warmup_ratio": None}, {"carried.warmup_steps": None})
        problems.need(not carried.warmup_steps, both, "carried.warmup_ratio", nearest=ways)
    elif carried.warmup_steps:
        steps = problems.whole(carried.warmup_steps, "carried.warmup_steps", "rollouts")
        values[f"{_OPTIM}lr_warmup_steps"] = steps
    if carried.precision not in (None, "bf16"):
        here = {"fsdp": ("bf16", "fp32", "fp16"), "megatron": ("bf16", "fp16")}.get(to.engine, ("bf16",))
        problems.fits(carried.precision in here, "carried.precision", _has(to, here), here)
        parts = ("param_dtype", "reduce_dtype", "buffer_dtype")
        mixed = {f"{ACTOR}fsdp_config.mixed_precision.{part}": carried.precision for part in parts}
        values |= {f"{ACTOR}megatron.dtype": "float16"} if megatron else mixed


def _has(to: WritingTarget, names: Iterable[str]) -> str:
    return f"verl's {to.engine} engine has {', '.join(names)}"


def _write_optimizer(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    carried, engine, optimizer = spec.carried, to.engine, spec.carried.optimizer
    if optimizer is not None:
        names = {canonical: name for name, canonical in OPTIMIZERS[engine].items()}
        implementation, _, other = optimizer.rpartition(".")
        key = optimizer_key(engine, to.version)
        if implementation and engine == "fsdp":
            values[f"{_OPTIM}optimizer_impl"], values[f"{_OPTIM}optimizer"] = implementation, other
        elif problems.fits(optimizer in names, "carried.optimizer", _has(to, names), names) and key is not None:
            values[key] = names[optimizer]
        elif optimizer in names:  # no key names it, and there is one only
            problems.fits(optimizer == "adamw", "carried.optimizer", "it is adamw", ("adamw",))
    betas, epsilon = (carried.beta1, carried.beta2), carried.optimizer_epsilon
    whole = [default if beta is None else beta for beta, default in zip(betas, BETAS, strict=True)]
    if engine == "megatron":
        # Megatron is handed no other betas than these.
        pairs = enumerate(zip(whole, BETAS, strict=True), 1)
        values |= {f"{_OVERRIDE}adam_beta{at}": beta for at, (beta, default) in pairs if beta != default}
    elif betas != (None, None):
        values[f"{_OPTIM}betas"] = whole
    if engine == "torchtitan" and epsilon is not None:
        values[f"{_OPTIM}eps"] = epsilon
    elif epsilon not in (None, EPSILON):
        takes = optimizer in (None, "adamw", "adam", "adamax", "nadam", "radam") and engine != "veomni"
        none = f"verl hands none to {optimizer} of its {engine} engine"
        problems.fits(takes, "carried.optimizer_epsilon", none, (EPSILON,))
        values[f"{_OVERRIDE}{'adam_eps' if engine == 'megatron' else 'eps'}"] = epsilon


_ARGUMENTS = {"min_lr_rate": "min_lr_ratio", "num_cycles": "num_cycles", WARMUP_START: None}
"""Arguments of a cosine -> FSDP's own names; the start of the warm-up follows from the floor."""


def _write_schedule(text: str, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    if (parts := problems.schedule(text)) is None:
        return
    (name, arguments), field = parts, "carried.lr_schedule"
    allowed = SCHEDULES[to.engine]
    problems.need(
        name in allowed,
        f"{field} = {name}: verl's engine has {', '.join(allowed)}",
        field,
        nearest=({field: one} for one in allowed),
    )
    key = {"megatron": "lr_decay_style", "torchtitan": "decay_type"}.get(to.engine, "lr_scheduler_type")
    values[f"{_OPTIM}{key}"] = "cosine" if name == "cosine_with_min_lr" else name
    keys = _ARGUMENTS if to.engine == "fsdp" else {}
    unknown = ", ".join(sorted(set(arguments) - set(keys)))
    problems.need(not unknown, f"{field}: verl has no arguments {unknown}", field, nearest=({field: name},))
    values |= {f"{_OPTIM}{own}": arguments[name] for name, own in keys.items() if own and name in arguments}
