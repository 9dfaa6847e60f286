"""Random configurations of each framework in its own words, and random specifications around what it can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st
from registered import adapters
from specs import values_of
from toys import plain_spec, reading_of

from batchbridge.comparing.convert import convert_to
from batchbridge.comparing.differences import UNIT_OF
from batchbridge.contract.reading import Context, Reading, Source, Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.meaning.spec import LossTerm, Spec
from batchbridge.reading.read import read_source

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "trl": ("0.15.2", "0.17.0", "0.20.0", "0.24.0", "0.29.0", "1.5.0", "1.9.0", "1.9.1", "1.12.0", "1.16.0"),
    "open_r1": ("0.18.0", "1.9.1", "1.16.0"),
    "verl": ("0.4.0", "0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.1"),
    "easyr1": ("0.3.0", "0.3.1", "0.3.2", "0.3.3.dev0"),
    "openrlhf": ("0.8.0", "0.9.3", "0.10.1", "0.10.2", "0.11.2"),
    "open_instruct": ("2024.11.20", "2025.11.3", "2026.1.26", "2026.3.1", "2026.6.10", "2026.8.20"),
}
"""Each must be readable and writable: `base` fails otherwise."""
STARTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "AdamW of Megatron": {"carried.weight_decay_excludes": "biases_and_norms", "carried.optimizer": "adamw"},
    "tensor parallelism": {
        "topology.tensor_parallel": 2,
        "carried.weight_decay_excludes": "nothing",
        "carried.lr_schedule": "linear",
    },
    "a token budget": {"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": 8192},
    "a critic": {"advantage.baseline": "value", "advantage.scale": "batch"},
    "a group filter": {"rollout.group_filter": "drop_zero_variance"},
    "rollouts ahead": {"staleness.mode": "bounded", "staleness.maximum": 2, "staleness.unit": "rollouts"},
    "steps that must be whole": {"order.last_optimizer_step": "error"},
    "sequences": {"objective.ratio_level": "sequence", "loss.policy.aggregation": "sequence_mean"},
}
"""What a case starts near: what of it a framework cannot say, it does in its own way."""
WORLDS = (1, 2, 4, 8)
"""Devices of a plain start; the others are on `WORLD`, since each start of a version costs a conversion."""
WORLD = 4
DATASET = 96_000
"""Prompts in the dataset: more than any rollout or queue of these cases holds."""

WORDS = (
    *("ppo", "gspo", "gspo_token", "grpo", "cispo", "sapo", "vespo", "gmpo", "geo_mean", "vanilla", "gpg", "clip_cov"),
    *("kl_cov", "dapo", "bnpo", "dr_grpo", "luspo", "token", "sequence", "default", "token-mean", "seq", "seq-mean"),
    *("seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "kl", "abs", "mse", "low_var_kl", "full"),
    *("k1", "k2", "k3", "k1_times_ratio", "constant", "linear", "cosine", "cosine_with_min_lr", "reinforce", "rloo"),
    *("remax", "gae", "group_norm", "reinforce_plus_plus", "group", "batch", "none", "adamw_torch", "sgd", "adamw"),
    *("bf16", "fp16", "bfloat16", "standard", "centered", "token_truncate", "sequence_mask", "fixed", "adam", "muon"),
)
"""Native words of all frameworks; what one does not take is left out of its case."""


@dataclass(frozen=True)
class Case:
    """A valid configuration: the native settings, and what they mean."""

    framework: str
    version: str
    world_size: int
    values: Mapping[str, Any]
    reading: Reading

    @property
    def spec(self) -> Spec:
        assert self.reading.spec is not None
        return self.reading.spec

    def __repr__(self) -> str:
        return f"{self.framework} {self.version} on {self.world_size}: {dict(self.values)}"


def read(framework: str, version: str, world_size: int, values: Mapping[str, Any]) -> Reading:
    """What these settings mean, with every finding."""
    context = Context(framework_version=version, world_size=world_size, dataset_size=DATASET)
    return read_source(Source(values=values), adapters()[framework], context)


def write(framework: str, version: str, spec: Spec) -> Written | tuple[Problem, ...]:
    """The configuration that says `spec`, or why there is none."""
    try:
        return adapters()[framework].write(spec, version)
    except CannotWrite as refused:
        return refused.problems


@cache
def begun(framework: str, version: str, world_size: int, start: str = "plain") -> Case | None:
    """The configuration nearest to a start; None where none is valid."""
    near = reading_of(plain_spec(world_size=world_size, **STARTS[start]), dataset_size=DATASET)
    found = convert_to(adapters()[framework], near, version=version)
    if found.written is None:
        return None
    reading = read(framework, version, world_size, found.written.values)
    if reading.verdict != "valid" or reading.spec is None:
        return None
    return Case(framework, version, world_size, found.written.values, reading)


def base(framework: str, version: str, world_size: int, start: str = "plain") -> Case:
    """The configuration nearest to a start, or to a plain run, which every version has."""
    case = begun(framework, version, world_size, start) or begun(framework, version, world_size)
    assert case is not None, (framework, version, world_size)
    return case


@cache
def _keys(framework: str, version: str, world_size: int, start: str) -> tuple[list[str], list[str]]:
    """(native keys that canonical fields come from, all native keys)."""
    reading = base(framework, version, world_size, start).reading
    told = {key for one in reading.provenance.values() for key in one.keys}
    return sorted(told & reading.native.keys()), sorted(reading.native)


def _other(value: Any) -> st.SearchStrategy[Any]:
    """Values of the kind of a native value; any kind where it is None."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from([1, 2, 3, 4, 8, 16, 64, 128, 0, -1, 2 * value, max(value // 2, 1)])
    if isinstance(value, float):
        return st.sampled_from([0.0, 1e-6, 0.001, 0.04, 0.1, 0.2, 0.28, 0.5, 0.9, 0.95, 1.0, 3.0])
    if isinstance(value, str):
        return st.sampled_from(WORDS)
    if value is None:
        return st.sampled_from([1, 2, 8, 64, 1024, 0.1, 0.5, 3.0, True, *WORDS])
    return st.just(value)


_STARTS = st.sampled_from(
    [*((world, "plain") for world in WORLDS), *((WORLD, start) for start in STARTS if start != "plain")]
)


@st.composite
def cases(draw: st.DrawFn, framework: str) -> Case:
    """A valid configuration with up to 8 settings changed, most of them settings that a canonical field comes from."""
    version = draw(st.sampled_from(VERSIONS[framework]))
    start = draw(_STARTS)
    case = base(framework, version, *start)
    telling, every = _keys(framework, version, *start)
    for _ in range(draw(st.integers(0, 8))):
        key = draw(st.sampled_from(telling if draw(st.integers(0, 9)) < 8 else every))
        values = {**case.values, key: draw(_other(case.reading.native.get(key)))}
        reading = read(framework, version, case.world_size, values)
        if reading.verdict == "valid" and reading.spec is not None:
            case = Case(framework, version, case.world_size, values, reading)
    return case


_FREE = [path for path in UNIT_OF if not path.startswith("loss.")]
_TERM = st.builds(
    LossTerm,
    aggregation=st.sampled_from(["token_mean", "sequence_mean", "sequence_sum", "sequence_sum_over_constant"]),
    constant=st.sampled_from([None, 512]),
)


@st.composite
def writable(draw: st.DrawFn, framework: str) -> tuple[str, Spec, Written]:
    """(version, a specification that the adapter says it can write, what it wrote): the whole schema is drawn from."""
    version = draw(st.sampled_from(VERSIONS[framework]))
    start = base(framework, version, *draw(_STARTS))
    spec, written = start.spec, write(framework, version, start.spec)
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 9)) == 0:
            change = {f"loss.{draw(st.sampled_from(['policy', 'kl', 'entropy']))}": draw(_TERM)}
        else:
            path = draw(st.sampled_from(_FREE))
            if path.startswith("critic.") and spec.critic is None:
                continue
            change = {path: draw(values_of(path))}
        result = write(framework, version, spec.replace(**change))
        if isinstance(result, Written):
            spec, written = spec.replace(**change), result
    assert isinstance(written, Written), written
    return version, spec, written


def leaf_values(spec: Spec) -> dict[str, Any]:
    """Every leaf with its value; terms of the loss only where they are said."""
    return spec.values
