"""Rows that know which completion they are, for batches that a driver hands to Ray workers; and a planned loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchbridge.meaning.plan import Plan

ROLLOUT = "batchbridge_rollout"


PROMPT = "batchbridge_prompt"


POSITION = "batchbridge_position"


SAMPLE = "session_id"


STEP = "batchbridge_step"
"""Columns and values that ride with a batch: rollout, prompt (index in the dataset), the prompt's place in its rollout
(-1: a filler row), sample (the V1 trainer's own column; the V0 trainer gets one of this name), where
rollouts are filled while the run goes on the rollout at whose start the policy generated the row, and per call of
`update_actor` the optimizer step."""


SEED = "batchbridge_sampling_seed"
"""A prompt's column: the seed of its sample 0."""


class NumberedDataset:
    """A dataset whose items know their index; otherwise the one that it wraps."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, index: int) -> Any:
        item = dict(self._native[index])
        item[PROMPT] = int(index)
        return item

    def __getattr__(self, name: str) -> Any:
        if name == "_native" or name.startswith("__"):  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self._native, name)


class PlannedLoader:
    """A stand-in for the data loader: batches of the native collator, rollout by rollout, from the trainer's place on.

    It has no state of its own: the place is the trainer's.
    """

    sampler = None
    """Asked for by verl's loop up to 0.7.1, which has a curriculum's updated."""

    def __init__(
        self,
        plan: Plan,
        *,
        dataset: Any,
        collate: Callable[[list[Any]], dict[str, Any]],
        rollouts_done: Callable[[], int],
        prompts_at_once: int | None = None,
        before: Callable[[int], None] = lambda rollout: None,
    ) -> None:
        """A loader from the trainer's place on. rollouts_done: the trainer's place, asked for when the first batch is.
        prompts_at_once: of a batch; None: the whole rollout's. before: called with each rollout before its batches."""
        self._before = before
        self._plan, self.dataset, self._collate = plan, dataset, collate
        self._rollouts_done, self._at_once = rollouts_done, prompts_at_once

    def __len__(self) -> int:
        return self._plan.total_rollouts

    def __iter__(self) -> Iterator[Any]:
        for index in range(self._rollouts_done(), self._plan.total_rollouts):
            self._before(index)
            prompts, seeds = self._plan.rollout(index).prompts, self._plan.sampling_seeds(index)
            size = self._at_once or len(prompts)
            for start in range(0, len(prompts), size):
                yield self._batch(index, start, prompts[start : start + size], seeds[start : start + size])

    def _batch(self, rollout: int, start: int, prompts: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
        import numpy as np

        columns = self._collate([self.dataset[prompt] for prompt in prompts])
        for name, values in (
            (ROLLOUT, [rollout] * len(prompts)),
            (PROMPT, list(prompts)),
            (POSITION, list(range(start, start + len(prompts)))),
            (SEED, list(seeds)),
        ):
            columns[name] = np.array(values, dtype=object)
        return columns

    def state_dict(self) -> dict[str, Any]:
        """An empty state: the place is the trainer's, see the class."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """The reading of an empty state, which does nothing: see the class."""
