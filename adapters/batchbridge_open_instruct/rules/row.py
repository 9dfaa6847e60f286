"""What Open-Instruct's rules look at, and what a row of them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix, Where
from batchbridge.kit import Phase, Severity
from batchbridge.kit.records import dataclass
from batchbridge.kit.versions import holds
from batchbridge_open_instruct.meaning import learners
from batchbridge_open_instruct.settings import FROM_1, GRPO, GRPO_FAST, PPO, SCRIPT

Native = Mapping[str, Any]

FAST, BOTH, CORE, OLD = (GRPO_FAST,), (GRPO_FAST, GRPO), (GRPO,), (PPO,)
"""The scripts that a row is about."""


@dataclass(frozen=True)
class Problem:
    """What a rule says about these settings: the message, the native keys, the fixes."""

    message: str
    keys: tuple[str, ...]
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class Facts:
    """The settings, which of them were given, and what else is known."""

    native: Native
    given: Mapping[str, Where]
    dataset_size: int | None
    checkout: str

    @property
    def completions(self) -> int:
        """Nominal completions of a rollout (GRPO)."""
        return int(self.native["num_unique_prompts_rollout"] * self.native["num_samples_per_prompt_rollout"])

    @property
    def replicas(self) -> int:
        """Learners that see different data (GRPO): `world_size // sequence_parallel_size`."""
        if self.native[SCRIPT] == GRPO:
            return learners(self.native)
        return learners(self.native) // int(self.native["sequence_parallel_size"])


Test = Callable[[Facts], Problem | None]


@dataclass(frozen=True)
class Rule:
    """One row."""

    code: str
    severity: Severity
    phase: Phase
    test: Test
    scripts: tuple[str, ...]
    source: str
    native: str | None = None
    versions: str = ""
    """A range of checkouts; empty: all."""
    defect: bool = False
    """A defect of the script that shows in its behaviour, not a setting that was chosen badly."""

    def holds(self, native: Native, checkout: str) -> bool:
        """Whether the row is about this script in this checkout."""
        return native[SCRIPT] in self.scripts and holds(self.versions, checkout)


def setting(key: str, value: Any) -> Fix:
    """The way out that sets `key`."""
    return Fix(f"{key} {value}", {key: value})


def from_1(facts: Facts, *fixes: Fix) -> tuple[Fix, ...]:
    """`fixes`, where their settings can be set: before, the script's code fixes them."""
    return fixes if holds(FROM_1, facts.checkout) else ()


def ppo_rollout(native: Native) -> int:
    """Completions of a rollout (PPO)."""
    return int(native["local_rollout_batch_size"] * learners(native) * native["number_samples_per_prompt"])
