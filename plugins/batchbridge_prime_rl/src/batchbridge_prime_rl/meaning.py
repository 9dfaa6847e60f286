"""What prime-rl's settings mean where no row of `settings` says it. Source: prime-rl 0.8.0, what each names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge.kit.kinds import Kind, anything, natural, optional, real
from batchbridge.kit.schedules import schedule_text
from batchbridge.kit.typed_values import WrongValue
from batchbridge.kit.values import Told, shown
from batchbridge_prime_rl.settings import (
    AGE,
    ALGORITHM,
    DECAY,
    DEPLOYED,
    EXTRA,
    GROUP,
    LENGTHS,
    LOSS,
    NODES,
    NORM,
    PENALTY,
    PER_NODE,
    PRUNING,
    ROLES,
    SAMPLING,
    SCHEDULER,
    SOURCES,
    STEPS,
    TRAINING,
)

GATE = {"type": "advantage_range"}
"""A gate that admits no group whose advantages are all 0. Source: curriculum/gates/adv.py, AdvRangeGateConfig."""
WEIGHTS = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")
PENALTIES = dict(zip(WEIGHTS, (0.25, 0.1, 0.1), strict=True))
NOT_SAMPLED = ("chat_template_kwargs", "return_token_ids", "top_k")
"""Parts of extra_body that change no probability, and the one with a field."""
COLD = 1e-8
"""Share of the peak at which a warm-up begins where min_lr is 0. Source: trainer/scheduler.py."""
DISTILLED = ("hierarchical_grpo", "opd", "opsd", "sft")
"""Algorithms without the advantage of a group of completions to one prompt."""
OPTIMIZERS = {"sgd": ("momentum", "nesterov"), "muon": ("mu",)}
"""Settings of optimizers that have no field."""


def own(native: Mapping[str, Any], path: str, default: Any, kind: Kind = anything) -> list[Any]:
    """The values of a setting that each source may have, `default` where it does not; without a source, that alone.

    Raises `ValueError` where one is not of its kind.
    """
    found = []
    for place, source in enumerate(native[SOURCES]):
        value: Any = source
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        try:
            found.append(default if value is None else kind.convert(value))
        except WrongValue:
            raise ValueError(f"{SOURCES}[{place}].{path} = {shown(value)}: expected {kind.expected}") from None
    return found or [default]


def derive(native: Mapping[str, Any]) -> dict[str, Told]:
    """Canonical values by field. Raises `ValueError` for what is left open."""
    for path, shared, kind in (
        ("group_size", GROUP, natural),
        ("sampling.temperature", f"{SAMPLING}.temperature", real(0)),
        ("sampling.max_completion_tokens", f"{SAMPLING}.max_completion_tokens", optional(natural)),
        ("sampling.extra_body", EXTRA, anything),
        ("algo.type", ALGORITHM, anything),
        ("algo.length_penalty", PENALTY, anything),
    ):
        if any(value != native[shared] for value in own(native, path, native[shared], kind)):
            raise ValueError(f"{shared}: sources differ in {path}, and a specification has one value for the run")
    if native[ALGORITHM] in DISTILLED:
        raise ValueError(f"{ALGORITHM} = {native[ALGORITHM]}: its signal is no advantage of a group of completions")
    if native[f"{LOSS}.type"] == "custom":
        raise ValueError(f"{LOSS}.type = custom: {native[f'{LOSS}.import_path']} is code that is not read")
    if native[STEPS] is None:
        raise ValueError(f"{STEPS} is not set: the run has no end, and a specification has a length")
    cp, length = native["trainer.model.cp"], native[LENGTHS[0]]
    told = {
        "rollout.prompts_per_rollout": _by(None, "groups stream in as they finish", GROUP),
        "rollout.completions_per_prompt": Told(native[GROUP], GROUP),
        "rollout.sample_unit": _by("trajectory", "a trace of the environment, of one turn or several", SOURCES),
        "rollout.group_filter": _by(gated(native), "a gate at each source", SOURCES),
        "horizon.optimizer_steps": Told(native[STEPS], STEPS),
        "micro_batch.tokens_per_device": _by(max(length // cp, 1), "seq_len / cp", LENGTHS[0], "trainer.model.cp"),
        "carried.max_total_tokens": Told(length, LENGTHS[0]),
        "carried.max_gradient_norm": Told(bound(native), NORM),
        "open_terms": _by(tuple(sorted(open_terms(native))), "by name", *OPENED),
    }
    if native[DEPLOYED] == "multi_node":
        told["topology.world_size"] = _by(native[TRAINING], f"{NODES} x {PER_NODE}", NODES, PER_NODE)
    return told | _staleness(native) | _objective(native) | _optimizer(native) | _sampled(native)


def _by(value: Any, formula: str, *keys: str) -> Told:
    return Told(value, None, formula, keys)


def gated(native: Mapping[str, Any]) -> str:
    """`rollout.group_filter`. Raises `ValueError` for other gates. Source: AdvRangeGate.admit."""
    found = []
    for gates in own(native, "curriculum.gates", {}):
        zero = isinstance(gates, Mapping) and [
            gate for gate in gates.values() if isinstance(gate, Mapping) and {**GATE, **_WHOLE, **gate} == GATE | _WHOLE
        ]
        if zero is False or len(zero) != len(gates):
            raise ValueError(f"{SOURCES}: a gate other than advantages that are all 0 has no word")
        found.append("drop_zero_variance" if zero else "none")
    if len(set(found)) > 1:
        raise ValueError(f"{SOURCES}: some sources have a gate, and others none")
    return found[0]


_WHOLE = {"reject_min": 0.0, "reject_max": 0.0}


def bound(native: Mapping[str, Any]) -> float:
    """Clipping of gradients, which two kinds of run switch off. Source: TrainerConfig's validators."""
    off = native["trainer.model.ep_comm_backend"] == "deepep" or bool(native["trainer.model.full_offload"])
    return 0.0 if off or native[NORM] is None else float(native[NORM])


def _staleness(native: Mapping[str, Any]) -> dict[str, Told]:
    """Versions between the weights that a step starts from and the oldest that wrote a trajectory; older ones are
    dropped. With 0 each is written by the weights that it trains. Source: TrainSink._drop_stale."""
    if not native[AGE]:
        return {}
    said = {"mode": "bounded", "unit": "weight_versions"}
    told = {f"staleness.{field}": _by(value, "older ones are dropped", AGE) for field, value in said.items()}
    return told | {"staleness.maximum": Told(native[AGE], AGE)}


def _objective(native: Mapping[str, Any]) -> dict[str, Told]:
    """Bounds are of the probability's change: beyond them a token has no gradient. Source: trainer/rl/loss.py."""
    ipo = native[f"{LOSS}.type"] == "ipo"
    low, high = ("ipo_threshold",) * 2 if ipo else ("dppo_mask_low", "dppo_mask_high")
    return {
        "objective.surrogate": Told("ipo" if ipo else "dppo_tv", f"{LOSS}.type"),
        "objective.clip_low": Told(native[f"{LOSS}.{low}"], f"{LOSS}.{low}"),
        "objective.clip_high": Told(native[f"{LOSS}.{high}"], f"{LOSS}.{high}"),
        "advantage.baseline": Told("none" if native[ALGORITHM] == "rae" else "group_mean", ALGORITHM),
    }


def _optimizer(native: Mapping[str, Any]) -> dict[str, Told]:
    """Source: trainer/optim/__init__.py, trainer/scheduler.py."""
    kind, told = native["trainer.optim.type"], {}
    if kind in ("adamw", "muon"):
        told = {f"carried.beta{n}": Told(native[f"trainer.optim.betas{n}"], f"trainer.optim.betas{n}") for n in (1, 2)}
    if kind == "adamw":
        told["carried.optimizer_epsilon"] = Told(1e-8, None, "torch's default")
    keys = [f"{SCHEDULER}.{name}" for name in ("type", "warmup_steps", "decay_steps", "min_lr")]
    name, warmup, decay, least = (native[key] for key in keys)
    rate = native["trainer.optim.lr"]
    floor = float(f"{least / rate:.12g}") if rate and least else 0.0
    arguments: dict[str, Any] = {}
    if name != "constant" and warmup:
        arguments["warmup_start_rate"] = floor or COLD
    if name == "cosine":
        arguments["min_lr_rate"] = floor
    elif name == "linear" and decay:
        arguments |= {"decay_steps": decay, "min_lr_rate": floor or COLD}
    words = {"cosine": "cosine_with_min_lr", "linear": "linear_at_the_end" if decay else "constant"}
    text = schedule_text(words.get(name, "constant"), arguments)
    if text == "constant" and arguments:
        text = f"constant {json.dumps(arguments)}"
    told["carried.lr_schedule"] = _by(text, "in torch's schedulers", *keys, "trainer.optim.lr")
    told["carried.warmup_steps"] = Told(0.0 if name == "constant" else float(warmup), keys[1], None, (keys[0],))
    return told


def _sampled(native: Mapping[str, Any]) -> dict[str, Told]:
    """Source: OrchestratorConfig.resolve_env_config, TrainSamplingConfig.to_sampling_args, TrainSource, samplers."""
    extra = native[EXTRA] if isinstance(native[EXTRA], Mapping) else {}
    top = extra.get("top_k", -1)
    whole = isinstance(top, int) and not isinstance(top, bool) and abs(top) < 2**31
    if not whole:
        raise ValueError(f"{EXTRA}.top_k = {shown(top)}: expected a whole number")
    return {"carried.top_k": _by(top, "extra_body, or -1", EXTRA)}


OPENED = (SOURCES, PRUNING, f"{LOSS}.kl_tau", f"{LOSS}.adv_tau", ALGORITHM, PENALTY, ROLES, DECAY, EXTRA)
"""Settings behind open terms, beside those of the optimizer."""


def open_terms(native: Mapping[str, Any]) -> Iterator[str]:
    """What the schema has no word for, by name: "group: name", and a value behind it. Raises `ValueError`.

    filter_zero_advantages: tokens whose advantage is 0 leave the denominator, after the step is chosen. kl_tau: times
    the square of the log ratio to the sampler, which is no KL to a reference. adv_tau: a factor of advantages.
    """
    algorithm, kind = native[ALGORITHM], native["trainer.optim.type"]
    if native[PRUNING]:
        yield "loss: filter_zero_advantages"
    if native[f"{LOSS}.kl_tau"]:
        yield f"objective: kl_tau {native[f'{LOSS}.kl_tau']}"
    if native[f"{LOSS}.adv_tau"] != 1:
        yield f"advantage: adv_tau {native[f'{LOSS}.adv_tau']}"
    if algorithm in ("max_rl", "rae"):
        yield f"advantage: {algorithm}{f' {native[DECAY]}' if algorithm == 'rae' else ''}"
    if algorithm == "echo":
        yield f"objective: echo {_json(native[ROLES])}"
        if native["orchestrator.algo.filter.import_path"]:
            raise ValueError(f"{ALGORITHM} = echo: its filter is code that is not read")
    if native[PENALTY] is not None and algorithm in ("grpo", "echo"):
        said = native[PENALTY] if isinstance(native[PENALTY], Mapping) else {}
        yield f"advantage: length_penalty {_json({name: said.get(name, PENALTIES[name]) for name in WEIGHTS})}"
    extra = native[EXTRA] if isinstance(native[EXTRA], Mapping) else {}
    if rest := {name: value for name, value in extra.items() if name not in NOT_SAMPLED and value != 0}:
        yield f"carried: extra_body {_json(rest)}"
    for name in OPTIMIZERS.get(kind, ()):
        yield f"carried: {name} {_json(native[f'trainer.optim.{name}'])}"
    if len(native[SOURCES]) > 1:
        yield f"order: sources {_json(own(native, 'ratio', 1.0, real(0)))}"
    for sampler in own(native, "curriculum.sampler", None):
        if sampler is not None and sampler != {"type": "standard"}:
            raise ValueError(f"{SOURCES}: a sampler that looks at rewards has no word")


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
