"""AReaL's settings by name: `settings.json` has those that decide something, with kinds and defaults, the names of
those that decide nothing here by their groups (`declared`), and what its code fixes.

Source: AReaL 1.0.4 (4aef98d) api/cli_args.py PPOConfig and the classes of its fields; api/alloc_mode.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from batchbridge.kit.key_table import Key, recorded
from batchbridge.kit.kinds import Kind, WrongValue, anything, flag, natural, one_of, optional, real, whole

ArealSettings = Mapping[str, Any]
FACTS: Mapping[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text("utf-8"))
OFF = int(1e8)
"""The value of `gconfig.top_k` that cuts nothing off."""
MANDATORY: Mapping[str, str] = {
    **{
        f"{group}{name}": f"{name.partition('_')[0].upper()}"
        for group in ("", "actor.")
        for name in ("experiment_name", "trial_name")
    },
    "rollout.backend": "sglang:d1",
    "train_dataset.path": "DATASET",
    "train_dataset.type": "rl",
}
"""Settings without a default, and what is written where a specification says nothing of them."""
ENDLESS = 1_000_000
"""Versions of the weights that no run reaches: how an age without a bound is written."""
NORM = {
    "mean_level": (optional(one_of("batch", "group")), "batch"),
    "mean_leave1out": (flag, False),
    "std_level": (optional(one_of("batch", "group")), "batch"),
    "std_unbiased": (flag, True),
    "eps": (real(0), 1e-5),
    "group_size": (whole(), 1),
}
"""Source: NormConfig."""
REJECTION = {
    "level": (one_of("token", "sequence"), "token"),
    "action": (one_of("mask", "clamp"), "mask"),
    "metric": (one_of("ratio", "kl_k1", "kl_k2", "kl_k3"), "ratio"),
    "agg": (one_of("sum", "mean", "max"), "mean"),
    "upper": (real(), 5.0),
    "lower": (optional(real()), None),
}
"""Source: RejectionSamplingConfig."""


def _group(parts: Mapping[str, tuple[Kind, Any]]) -> Kind:
    """The kind of a group that may be null: every part with its own kind, at its default where it is left out."""
    expected = f"null, or a group of {', '.join(parts)}"

    def convert(value: Any) -> Mapping[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping) or not value.keys() <= parts.keys():
            raise WrongValue(expected)
        found = {}
        for name, (kind, default) in parts.items():
            try:
                found[name] = kind.convert(value.get(name, default))
            except WrongValue as wrong:
                raise WrongValue(f"{name}: {wrong.expected}") from None
        return found

    schema = {"type": ["object", "null"], "properties": {name: kind.schema for name, (kind, _) in parts.items()}}
    return Kind("group?", expected, convert, {**schema, "additionalProperties": False})


SHUFFLES = {True: "epoch_permutation", False: "none"}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_TOP_K = (lambda native: -1 if native >= OFF else native, lambda said: OFF if said is None or said < 1 else said)
KEYS = (
    *recorded(FACTS["settings"]),
    Key("train_dataset.shuffle", flag, True, "order.prompt_shuffle", SHUFFLES),
    Key("gconfig.top_k", natural, OFF, "carried.top_k", _TOP_K),
    Key("actor.disable_dropout", flag, False, "carried.dropout", {True: "off", False: "on"}),
    Key("actor.dtype", one_of(*PRECISIONS), "bfloat16", "carried.precision", PRECISIONS),
    Key("actor.reward_norm", _group(NORM)),
    Key("actor.adv_norm", _group(NORM)),
    Key("actor.rejection_sampling", _group(REJECTION)),
    Key("rollout.agent", anything),
)
DECLARED = tuple(Key(group + name, anything) for group, names in FACTS["declared"].items() for name in names.split())
STRICT = ("actor.", "gconfig.", "rollout.", "train_dataset.", "cluster.")
"""Groups in which a stranger is an error. The whole configuration may be a class of the program's own, with more."""
DIMENSIONS = {"d": "data", "t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}
_PLAIN = re.compile(r"(fsdp|megatron|archon)(?:\[\w+\])?:((?:[dtpce][1-9]\d*)+)")
_HYBRID = re.compile(r"(megatron|archon|fsdp):\(?attn:((?:[dtpc][1-9]\d*)+)\|ffn:(?:[dtpe][1-9]\d*)+\)?")


def allocation(native: ArealSettings) -> tuple[str, Mapping[str, int]] | None:
    """The training engine and the sizes of its dimensions, by letter; None where `actor.backend` says none.

    Of experts that have sizes of their own, those of attention are the devices. Source: ALLOCATION_GRAMMAR,
    ParallelStrategy.world_size.
    """
    said = re.sub(r"\s", "", native["actor.backend"] or "")
    found = _PLAIN.fullmatch(said) or _HYBRID.fullmatch(said)
    if found is None:
        return None
    sizes = dict.fromkeys(DIMENSIONS, 1)
    sizes |= {letter: int(size) for letter, size in re.findall(r"([a-z])(\d+)", found[2])}
    return found[1], sizes


def devices(native: ArealSettings) -> int | None:
    """Devices that train; experts are shared among them."""
    found = allocation(native)
    return None if found is None else prod(size for letter, size in found[1].items() if letter != "e")


def engine(native: ArealSettings) -> str:
    """The training engine, "" where none is said."""
    return (allocation(native) or ("", {}))[0]


def share(native: ArealSettings) -> int:
    """Completions of a rollout that one replica trains on. Source: train_controller._dispatch_tensors."""
    replicas = (allocation(native) or ("", {"d": 1}))[1]["d"]
    return int(native["train_dataset.batch_size"] * native["gconfig.n_samples"]) // replicas


def rows_vary(native: ArealSettings) -> bool:
    """Whether each call of an agent is a row of its own, of which a prompt has any number."""
    agent = native["rollout.agent"]
    return isinstance(agent, Mapping) and agent.get("export_style", "individual") == "individual"


def against_nothing(native: ArealSettings) -> bool:
    """Whether the KL penalty has no reference: log-probabilities of 0 stand in. Source: PPOTrainer.__init__,
    PPOActor._compute_advantages."""
    coefficient = native["actor.kl_ctl"]
    return bool(coefficient) and (native["ref"] is None or coefficient < 0)


def compares_groups(native: ArealSettings) -> bool:
    """Whether rewards are compared within groups."""
    norms = (native["actor.reward_norm"], native["actor.adv_norm"])
    return any(norm is not None and "group" in (norm["mean_level"], norm["std_level"]) for norm in norms)
