"""One run as EasyR1 sees it: its settings and its batch arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.records import dataclass
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.settings import SETTINGS, holds

ABSENT = {row.key: row.default for row in SETTINGS} | {names.DYNAMIC: False, names.MAX_TRIES: 0}
"""Values that hold in versions without the setting: generation before 0.3.1 is never repeated."""


@dataclass(frozen=True)
class EasyR1Run:
    """Settings by native key, with the version and the devices. Symbols as in docs/easyr1.md."""

    native: Mapping[str, Any]
    version: str
    world: int
    given_keys: frozenset[str] = frozenset()
    prompts_in_dataset: int | None = None

    def __getitem__(self, key: str) -> Any:
        """The setting, or what holds in versions that do not have it."""
        return self.native[key] if key in self.native else ABSENT[key]

    def key_and_value(self, key: str) -> str:
        """`key = value`."""
        return f"{key} = {self[key]}"

    @property
    def ulysses_key(self) -> str:
        return f"{names.ACTOR}{'ulysses_sequence_parallel_size' if holds('<0.3.1', self.version) else 'ulysses_size'}"

    @property
    def epochs_key(self) -> str:
        return f"trainer.total_{'episodes' if holds('<0.3.1', self.version) else 'epochs'}"

    @property
    def plain(self) -> bool:
        """Every size is positive."""
        sizes = (names.PROMPTS, names.GROUP, names.BATCH, names.MICRO, names.PASSES, self.ulysses_key)
        return bool(min(self.world, *(self[key] for key in sizes)) >= 1)

    @property
    def replicas(self) -> int:
        """Data-parallel size D (floored where the devices do not divide); 0 where nothing is left."""
        return self.world // self[self.ulysses_key] if self[self.ulysses_key] >= 1 else 0

    @property
    def share(self) -> int:
        """Completions per replica and optimizer step, floored. Source: EasyR1 fsdp_workers.py:146 (0.3.2 on),
        (B n S) // W in 0.3.1, B n // W x S in 0.3.0."""
        asked, ulysses = self[names.BATCH] * self[names.GROUP], self[self.ulysses_key]
        if holds("<0.3.1", self.version):
            return int(asked // self.world * ulysses)
        if holds("<0.3.2", self.version):
            return int(asked * ulysses // self.world)
        return int(asked // self.replicas) if self.replicas else 0

    @property
    def block(self) -> int:
        """Completions of a rollout that each replica trains on."""
        return int(self.completions_per_rollout // self.world * self[self.ulysses_key])

    def pieces(self, rows: int, size: int) -> int | None:
        """The number of parts into which `DataProto.split` cuts `rows` by `size`; None where it fails. Before 0.3.2 it
        made rows // size equal parts, whatever their size. Source: EasyR1 protocol.py (run)."""
        count = rows // size if size >= 1 else 0
        if count < 1 or rows % count or (holds(">=0.3.2", self.version) and rows % size):
            return None
        return int(count)

    @property
    def completions_per_step(self) -> int:
        """The completions that one optimizer step really has."""
        return self.share * self.replicas

    @property
    def completions_per_rollout(self) -> int:
        return int(self[names.PROMPTS] * self[names.GROUP])

    @property
    def steps_per_rollout(self) -> float:
        """Optimizer steps of one rollout, all passes."""
        return float(self[names.PASSES] * self.completions_per_rollout / self.completions_per_step)

    @property
    def has_kl(self) -> bool:
        """Whether there is a KL penalty."""
        return not self["algorithm.disable_kl"]

    @property
    def prompts_at_once(self) -> int:
        """Prompts of one batch of the data loader."""
        return int(self[names.PROMPTS] if self[names.MINI_ROLLOUT] is None else self[names.MINI_ROLLOUT])

    @property
    def training_steps(self) -> int | None:
        """Rollouts of the whole run; None where the dataset decides and is not known. The data loader gives whole
        batches only. Source: EasyR1 trainer/ray_trainer.py:238 (run)."""
        limit, count, size = self["trainer.max_steps"], self.prompts_in_dataset, self.prompts_at_once
        if limit is not None or count is None or not self.plain:
            return None if limit is None else int(limit)
        return int(count // size * size // self[names.PROMPTS] * self[self.epochs_key]) if size >= 1 else None

    @property
    def longest(self) -> int:
        """Tokens of a padded sequence."""
        return int(self[names.PROMPT_TOKENS] + self[names.RESPONSE_TOKENS])

    @property
    def token_weighted(self) -> bool:
        """Losses of micro-batches are weighed by their tokens (0.3.2 on), not averaged."""
        return holds(">=0.3.2", self.version)

    @property
    def depends_on_split(self) -> bool:
        """The aggregation that the version gets wrong: `seq` from 0.3.2 on, `token` before."""
        return bool((self[names.MODE] == "seq") == self.token_weighted)
