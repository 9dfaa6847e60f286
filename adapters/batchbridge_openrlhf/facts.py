"""The facts that OpenRLHF's rules look at, what a rule is, and the ways out that several of them offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix, Reading
from batchbridge.kit import nearest_numbers, rule_table
from batchbridge.kit.records import dataclass
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.deepspeed import AppliedNormaliser, applied, required
from batchbridge_openrlhf.settings import holds
from batchbridge_openrlhf.sizes import OpenRlhfSizes


@dataclass(frozen=True)
class OpenRlhfFacts:
    """The facts that the rules look at. `settings` by identity; `prompts`: of the dataset, None: unknown; `names`:
    identity to the version's own name; `whole`: a launch command, to which no model or data will be added;
    `given_options`: identities that the user named; `decided`: no default stands where a value could not be read."""

    settings: Mapping[str, Any]
    sizes: OpenRlhfSizes
    prompts: int | None
    version: str
    names: Mapping[str, str]
    whole: bool = False
    given_options: frozenset[str] = frozenset()
    decided: bool = True

    def __getitem__(self, identity: str) -> Any:
        return self.settings[identity]

    def name(self, identity: str) -> str:
        """The option as this version spells it."""
        return self.names.get(identity, identity)

    def name_and_value(self, identity: str) -> str:
        """`name = value`."""
        return f"{self.name(identity)} = {self.settings[identity]}"

    @property
    def trained_prompts(self) -> int | None:
        """Prompts of an episode: at most data.max_samples."""
        return None if self.prompts is None else max(min(self.prompts, self.settings["data.max_samples"]), 0)

    @property
    def has_critic(self) -> bool:
        """Whether the run trains a critic, which only gae does."""
        return bool(self.settings[names.ESTIMATOR] == "gae")

    @property
    def remote_reward(self) -> bool:
        """Whether rewards come from a server, a function or an agent; an agent counts as one."""
        return bool(self.settings["reward.remote_url"] or self.settings["train.agent_func_path"])

    @property
    def packs(self) -> bool:
        """Packing, also where ring attention (since 0.8.4) or dynamic batches turn it on."""
        ring = self.sizes.ring > 1 and holds(">=0.8.4", self.version)
        return bool(self.settings[names.PACKING] or ring or self.sizes.dynamic)


def settings_in(reading: Reading) -> OpenRlhfFacts:
    """The settings of a configuration, by their newest names."""
    facts: OpenRlhfFacts = reading.run  # type: ignore[attr-defined]  # a `RunReading` of this adapter
    return facts


OpenRlhfRule = rule_table.Rule[OpenRlhfFacts]
"""One row, whose `keys` are identities."""


def gradients_of(facts: OpenRlhfFacts) -> tuple[str, AppliedNormaliser | None]:
    """The DeepSpeed that this release requires, and which gradients it applies of a step's micro-batches.

    All, where no optimizer step has more than one micro-batch, or fixed ones (whose number DeepSpeed is told).
    """
    s, deepspeed = facts.sizes, required(facts.version)
    longest = facts["data.max_len"] or (facts["prompt_max_len"] or 0) + (facts["generate_max_len"] or 0)
    budget = facts[names.BUDGET] * s.ring * s.tensor
    if not s.dynamic or (longest and s.train // max(s.replicas, 1) * longest <= budget):
        return deepspeed, "all"
    return deepspeed, applied(
        deepspeed,
        stage=facts[names.ZERO],
        offload=bool(facts["ds.adam_offload"]),
        float32_accumulation=facts["ds.grad_accum_dtype"] in ("fp32", "float32"),
    )


# ---- ways out


def fix_of(facts: OpenRlhfFacts, changes: Mapping[str, Any]) -> Fix:
    """The way out that sets `changes` (by identity; None: leave it out), in the names of the version."""
    named = {facts.name(identity): value for identity, value in changes.items()}
    said = [f"leave out {name}" if value is None else _spoken(name, value) for name, value in named.items()]
    return Fix(", ".join(said), named)


def fixes_of(facts: OpenRlhfFacts, identity: str, *values: Any) -> tuple[Fix, ...]:
    """The ways out that set one option, one for each value."""
    return tuple(fix_of(facts, {identity: value}) for value in values)


def _spoken(name: str, value: Any) -> str:
    if value is True:
        return f"add --{name}"
    if value is False:
        return f"leave out --{name}"
    return f"{name} = {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def fixed(**changes: Any) -> Callable[[OpenRlhfFacts], tuple[Fix, ...]]:
    """One way out; double underscores stand for the dots of an identity."""
    return lambda facts: (fix_of(facts, {key.replace("__", "."): value for key, value in changes.items()}),)


def newer(version: str) -> Callable[[OpenRlhfFacts], tuple[Fix, ...]]:
    """The way out that the options do not have."""
    return lambda facts: (Fix(f"use openrlhf {version} or later"),)


def world_changes(facts: OpenRlhfFacts, world: int) -> dict[str, int]:
    """The options that say `world` devices, on as many nodes as now where they divide it."""
    nodes = facts.sizes.nodes
    if nodes > 0 and world % nodes == 0:
        return {names.DEVICES: world // nodes}
    return {names.NODES: 1, names.DEVICES: world}


def below_one_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    """Every size below 1 at 1."""
    return (fix_of(facts, dict.fromkeys(facts.sizes.below_one, 1)),)


def world_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    """The nearest worlds of whole replicas."""
    s = facts.sizes
    worlds = nearest_numbers(s.world, multiple_of=s.ring * s.tensor)
    return tuple(fix_of(facts, world_changes(facts, world)) for world in worlds)


# ---- sources

ALL = "openrlhf 0.8.0 to 0.11.2"
PARSER = "openrlhf {} cli/train_ppo_ray.py, below parse_args"
