"""The meaning of prime-rl's settings where no row of `settings` says it. Source: prime-rl 0.8.0, what each names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge.kit.kinds import Kind, WrongValue, anything, natural, optional, real, whole
from batchbridge.kit.schedules import schedule_text, share_of_peak
from batchbridge.kit.values import FieldValue, by, shown
from batchbridge_prime_rl import settings as keys

GATE = {"type": "advantage_range"}
"""A gate that admits no group whose advantages are all 0. Source: curriculum/gates/adv.py, AdvRangeGateConfig."""
ALL_ZERO = GATE | {"reject_min": 0.0, "reject_max": 0.0}
PENALTIES = {"num_output_tokens_weight": 0.25, "num_input_tokens_weight": 0.1, "num_turns_weight": 0.1}
NOT_SAMPLED = ("chat_template_kwargs", "return_token_ids", "top_k")
"""Parts of extra_body that change no probability, and the one with a field."""
ENDLESS = 1_000_000_000
"""Steps that no run reaches: the length beside the open term of a run without an end."""
COLD = 1e-8
"""Share of the peak at which a warm-up begins where min_lr is 0. Source: trainer/scheduler.py."""
DISTILLED = ("hierarchical_grpo", "opd", "opsd", "sft")
"""Algorithms without the advantage of a group of completions to one prompt."""
TERMS: tuple[tuple[str, str, Any, str], ...] = (
    ("loss", keys.PRUNING, False, ""),
    ("objective", f"{keys.LOSS}.kl_tau", 0, ""),
    ("advantage", f"{keys.LOSS}.adv_tau", 1, ""),
    ("advantage", keys.PENALTY, None, "grpo echo"),
    ("advantage", keys.DECAY, None, "rae"),
    ("objective", keys.ROLES, None, "echo"),
    ("carried", keys.EXTRA, {}, ""),
    *(("carried", f"trainer.optim.{name}", None, kind) for kind, name in keys.OPTIMIZERS),
)
"""Settings that the schema has no field for: group, key, the value that does nothing, and for which algorithm or
optimizer it counts. filter_zero_advantages: tokens whose advantage is 0 leave the denominator, once the step is chosen.
kl_tau: times the square of the log ratio to the sampler, which is no KL to a reference. adv_tau: a factor of
advantages."""
OPENED = {".".join(key.split(".")[-2:]): key for _, key, _, _ in TERMS}
"""Their names in open terms."""
ALGORITHMS = {"max_rl": "advantage", "rae": "advantage", "echo": "objective"}
"""Algorithms that are open terms themselves."""


def own(native: Mapping[str, Any], path: str, default: Any, kind: Kind = anything) -> list[Any]:
    """The values of a setting that each source may have, `default` where it does not; without a source, that alone.

    Raises `ValueError` where one is not of its kind.
    """
    found = []
    for place, source in enumerate(native[keys.SOURCES]):
        value: Any = source
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        try:
            found.append(default if value is None else kind.convert(value))
        except WrongValue:
            raise ValueError(f"{keys.SOURCES}[{place}].{path} = {shown(value)}: expected {kind.expected}") from None
    return found or [default]


def derive(native: Mapping[str, Any]) -> dict[str, FieldValue]:
    """Canonical values by field. Raises `ValueError` for what is left open.

    An age counts versions between the weights that a step starts from and the oldest that wrote a trajectory; with 0,
    each is written by the weights that it trains. Source: TrainSink._drop_stale, OrchestratorConfig.resolve_env_config.
    """
    for path, shared, kind in (
        ("group_size", keys.GROUP, natural),
        ("sampling.temperature", f"{keys.SAMPLING}.temperature", real(0)),
        ("sampling.max_completion_tokens", f"{keys.SAMPLING}.max_completion_tokens", optional(natural)),
        ("sampling.extra_body", keys.EXTRA, anything),
        ("algo.type", keys.ALGORITHM, anything),
        ("algo.length_penalty", keys.PENALTY, anything),
    ):
        if any(value != native[shared] for value in own(native, path, native[shared], kind)):
            raise ValueError(f"{shared}: sources differ in {path}, and a specification has one value for the run")
    if (name := native[keys.ALGORITHM]) in DISTILLED:
        raise ValueError(f"{keys.ALGORITHM} = {name}: its signal is not an advantage of a group of completions")
    if native[f"{keys.LOSS}.type"] == "custom":
        raise ValueError(f"{keys.LOSS}.type = custom: {native[f'{keys.LOSS}.import_path']} is code that is not read")
    top = native[keys.EXTRA].get("top_k", -1) if isinstance(native[keys.EXTRA], Mapping) else None
    if not whole().takes(top):
        raise ValueError(f"{keys.EXTRA}: top_k = {shown(top)}: expected a whole number")
    cp, length = native["trainer.model.cp"], native[keys.LENGTHS[0]]
    values = {
        "rollout.prompts_per_rollout": by(None, "groups stream in as they finish", keys.GROUP),
        "rollout.completions_per_prompt": FieldValue(native[keys.GROUP], keys.GROUP),
        "rollout.sample_unit": by("trajectory", "a trace of the environment, of one turn or several", keys.SOURCES),
        "rollout.group_filter": by(gated(native), "a gate at each source", keys.SOURCES),
        "horizon.optimizer_steps": FieldValue(
            ENDLESS if native[keys.STEPS] is None else native[keys.STEPS], keys.STEPS
        ),
        "micro_batch.tokens_per_device": by(max(length // cp, 1), "seq_len / cp", keys.LENGTHS[0], "trainer.model.cp"),
        "carried.max_total_tokens": FieldValue(length, keys.LENGTHS[0]),
        "carried.top_k": by(top, "of extra_body, or -1", keys.EXTRA),
        "carried.max_gradient_norm": FieldValue(bound(native), keys.NORM),
        "open_terms": by(tuple(sorted(open_terms(native))), "by name", keys.SOURCES, keys.ALGORITHM, *OPENED.values()),
    }
    if native[keys.DEPLOYED] == "multi_node":
        sizes = keys.DEPLOYED, keys.NODES, keys.PER_NODE
        values["topology.world_size"] = by(native[keys.TRAINING], "nodes x devices", *sizes)
    age = native[keys.AGE]
    said = {"maximum": age} | ({"mode": "bounded", "unit": "weight_versions"} if age else {})
    values |= {f"staleness.{field}": by(value, "older ones are dropped", keys.AGE) for field, value in said.items()}
    return values | _objective(native) | _optimizer(native)


def gated(native: Mapping[str, Any]) -> str:
    """`rollout.group_filter`. Raises `ValueError` for other gates. Source: AdvRangeGate.admit."""
    found = own(native, "curriculum.gates", {})
    every = [gate for gates in found for gate in (gates.values() if isinstance(gates, Mapping) else [None])]
    known = all(isinstance(gate, Mapping) and {**ALL_ZERO, **gate} == ALL_ZERO for gate in every)
    if not known or (every and native[keys.ALGORITHM] == "rae"):
        raise ValueError(f"{keys.SOURCES}: a gate other than one for groups of equal rewards has no word")
    if len({bool(gates) for gates in found}) > 1:
        raise ValueError(f"{keys.SOURCES}: some sources have a gate, and others none")
    return "replace_zero_variance" if every else "none"


def bound(native: Mapping[str, Any]) -> float:
    """Clipping of gradients, which two kinds of run switch off. Source: TrainerConfig's validators."""
    off = native["trainer.model.ep_comm_backend"] == "deepep" or bool(native["trainer.model.full_offload"])
    return 0.0 if off or native[keys.NORM] is None else float(native[keys.NORM])


def _objective(native: Mapping[str, Any]) -> dict[str, FieldValue]:
    """Bounds are of the probability's change: beyond them a token has no gradient. Source: trainer/rl/loss.py."""
    ipo = native[f"{keys.LOSS}.type"] == "ipo"
    low, high = ("ipo_threshold",) * 2 if ipo else ("dppo_mask_low", "dppo_mask_high")
    return {
        "objective.surrogate": FieldValue("ipo" if ipo else "dppo_tv", f"{keys.LOSS}.type"),
        "objective.clip_low": FieldValue(native[f"{keys.LOSS}.{low}"], f"{keys.LOSS}.{low}"),
        "objective.clip_high": FieldValue(native[f"{keys.LOSS}.{high}"], f"{keys.LOSS}.{high}"),
        "advantage.baseline": FieldValue("none" if native[keys.ALGORITHM] == "rae" else "group_mean", keys.ALGORITHM),
    }


def _optimizer(native: Mapping[str, Any]) -> dict[str, FieldValue]:
    """Source: trainer/optim/__init__.py, trainer/scheduler.py."""
    kind, values = native["trainer.optim.type"], {}
    if kind in ("adamw", "muon"):
        values = {
            f"carried.beta{n}": FieldValue(native[f"trainer.optim.betas{n}"], f"trainer.optim.betas{n}") for n in (1, 2)
        }
    if kind == "adamw":
        values["carried.optimizer_epsilon"] = by(1e-8, "torch's default")
    parts = [f"{keys.SCHEDULER}.{name}" for name in ("type", "warmup_steps", "decay_steps", "min_lr")]
    name, warmup, decay, least = (native[key] for key in parts)
    rate = native["trainer.optim.lr"]
    floor = share_of_peak(least, rate)
    arguments: dict[str, Any] = {"warmup_start_rate": floor or COLD} if name != "constant" and warmup else {}
    if name == "cosine":
        arguments["min_lr_rate"] = floor
    elif name == "linear" and decay:
        arguments |= {"decay_steps": decay, "min_lr_rate": floor or COLD}
    words = {"cosine": "cosine_with_min_lr", "linear": "linear_at_the_end" if decay else "constant"}
    text = schedule_text(words.get(name, "constant"), arguments)
    values["carried.lr_schedule"] = by(text, "in torch's schedulers", *parts, "trainer.optim.lr")
    values["carried.warmup_steps"] = FieldValue(
        0.0 if name == "constant" else float(warmup), parts[1], None, (parts[0],)
    )
    return values


def open_terms(native: Mapping[str, Any]) -> Iterator[str]:
    """Terms that the schema has no word for: "group: name", and a value behind it. Raises `ValueError`."""
    chosen = (native[keys.ALGORITHM], native["trainer.optim.type"])
    if native[keys.STEPS] is None:
        yield "horizon: endless"
    if chosen[0] in ALGORITHMS:
        yield f"{ALGORITHMS[chosen[0]]}: {chosen[0]}"
    if native["orchestrator.algo.filter.import_path"] and chosen[0] == "echo":
        raise ValueError(f"{keys.ALGORITHM} = echo: its filter is code that is not read")
    for (group, key, nothing, where), name in zip(TERMS, OPENED, strict=True):
        value = native[key]
        if key == keys.PENALTY and isinstance(value, Mapping):
            value = {weight: value.get(weight, default) for weight, default in PENALTIES.items()}
        elif key == keys.EXTRA and isinstance(value, Mapping):
            value = {part: said for part, said in value.items() if part not in NOT_SAMPLED and said != 0}
        if value != nothing and (not where or {*where.split()} & {*chosen}):
            yield f"{group}: {name}{'' if value is True else f' {_json(value)}'}"
    if len(native[keys.SOURCES]) > 1:
        yield f"order: sources {_json(own(native, 'ratio', 1.0, real(0)))}"
    if any(sampler not in (None, {"type": "standard"}) for sampler in own(native, "curriculum.sampler", None)):
        raise ValueError(f"{keys.SOURCES}: a sampler that looks at rewards has no word")


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
