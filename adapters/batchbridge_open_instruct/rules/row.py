"""The facts that Open-Instruct's rules look at, the form of a row, and the ways out that rows offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from batchbridge import Fix, Where
from batchbridge.kit import ErrorText, rule_table
from batchbridge.kit.records import dataclass
from batchbridge.kit.rule_table import RuleKind
from batchbridge_open_instruct.meaning import learners
from batchbridge_open_instruct.settings import GROUP, GRPO, GRPO_FAST, PPO, PROMPTS, SCRIPT

FAST, CORE, OLD = (GRPO_FAST,), (GRPO,), (PPO,)
"""The scripts that a row is about."""
BOTH, ALL = (*FAST, *CORE), (*FAST, *CORE, *OLD)

UNTRAINED = RuleKind("error", "never", defect=False)
"""Nothing is trained, as the settings say."""
UNREAD = RuleKind("warning", "never", defect=False)
"""A setting that the script takes and never reads."""


@dataclass(frozen=True)
class OpenInstructFacts:
    """The settings, which of them were given, and what else is known. others: what was given for settings that say
    nothing about batches, None for nothing."""

    native: Mapping[str, Any]
    given_places: Mapping[str, Where]
    dataset_size: int | None
    checkout: str
    others: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.native[key]

    def given_text(self, key: str) -> str:
        """The text given for a setting that says nothing about batches; "" for nothing."""
        return str(self.given_places[key].value) if key in self.given_places else ""

    @property
    def completions(self) -> int:
        """Nominal completions of a rollout."""
        if self[SCRIPT] != PPO:
            return int(self[PROMPTS] * self[GROUP])
        share = self["local_rollout_batch_size"] * self["number_samples_per_prompt"]
        return int(share * learners(self.native))

    @property
    def replicas(self) -> int:
        """Learners that see different data (GRPO): `world_size // sequence_parallel_size`."""
        world = learners(self.native)
        return world if self[SCRIPT] == GRPO else world // int(self["sequence_parallel_size"])

    @property
    def first(self) -> bool:
        """Whether it is grpo_fast.py before the first release."""
        return "masked_mean_axis" in self.native


OpenInstructRule = rule_table.Rule[OpenInstructFacts]
OpenInstructTest = Callable[[OpenInstructFacts], str | None]
OpenInstructFixes = Callable[[OpenInstructFacts], tuple[Fix, ...]]


def remove(key: str) -> Fix:
    """The way out that leaves `key` out."""
    return Fix(f"remove {key}", {key: None})


def ways(*others: Fix, **settings: Any) -> OpenInstructFixes:
    """A way out for each setting: its value, each of a tuple of values, or what a function makes of the facts; and
    others."""

    def fixes(facts: OpenInstructFacts) -> tuple[Fix, ...]:
        found = []
        for key, value in settings.items():
            made = value(facts) if callable(value) else value
            found += [Fix(f"{key} {one}", {key: one}) for one in (made if isinstance(made, tuple) else (made,))]
        return (*found, *others)

    return fixes


no_way = ways()


class RuleSubject(NamedTuple):
    """The subject of a row: when the script notices, in which scripts and checkouts, and where that was read. core,
    text: see `rule_table.Rule`.

    Called, it makes the row; `when` makes one of settings whose values do not go together.
    """

    code: str
    kind: RuleKind
    scripts: tuple[str, ...]
    source: str
    versions: str = ""
    core: str = ""
    text: ErrorText | None = None

    def __call__(
        self,
        test: OpenInstructTest,
        keys: tuple[str, ...],
        native: str | None = None,
        fixes: OpenInstructFixes = no_way,
    ) -> OpenInstructRule:
        """A row; see `rule_table.Rule`."""
        asked = partial(_of, self.scripts, test)
        return self.kind(self.code, asked, keys, native, self.source, fixes, self.versions, self.core, self.text)

    def when(
        self,
        values: Mapping[str, Any],
        message: str,
        native: str | None = None,
        fixes: OpenInstructFixes = no_way,
        also: tuple[str, ...] = (),
    ) -> OpenInstructRule:
        """A row that is broken by `values`, see `rule_table.meets`. message: with settings in braces. also: further
        settings to point at."""
        return self(partial(_when, values, message), (*values, *also), native, fixes)


def _of(scripts: tuple[str, ...], test: OpenInstructTest, facts: OpenInstructFacts) -> str | None:
    return test(facts) if facts[SCRIPT] in scripts else None


def _when(values: Mapping[str, Any], message: str, facts: OpenInstructFacts) -> str | None:
    return message.format_map(facts.native) if rule_table.meets(values, facts.native) else None


def no_steps(facts: OpenInstructFacts) -> str | None:
    """Fewer completions in the run than in a rollout."""
    episodes, completions = facts["total_episodes"], facts.completions
    if episodes >= completions:
        return None
    return f"total_episodes {episodes} (completions) do not fill one rollout of {completions}: nothing is trained"
