"""A token budget that is found while a run goes on: what no cut changes, the device's memory may decide.

The budget grows from one completion by the memory that passes took, and is halved where one ran out of it: its rows
run again, in smaller micro-batches. Knows no framework, and not whose memory it is.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SHARE = 0.9
"""The share of a device's memory that a budget is to fill."""
GROWTH = 2
"""The most times the tokens of the largest micro-batch so far that the next one may have: further extrapolation is
not trusted."""
LEAST_CHANGE = 1.125
"""A budget grows by so much, or stays."""
BELOW_FAILED = 0.75
"""The most of the tokens of a micro-batch that ran out of memory that a budget then has. After each `PATIENCE` passes
that fitted it is `GROWTH` times as many: what was wrong may be over."""
PATIENCE = 64


@dataclass
class PassMemory:
    """The memory of one pass, bytes: in use when it began, and the most while it ran."""

    resting: int = 0
    peak: int = 0


class DeviceMemory(Protocol):
    """The memory of one device, as far as this process may use it."""

    @property
    def limit(self) -> int:
        """The bytes that the process can have at once, those that it has included."""

    @property
    def out_of_memory(self) -> type[Exception]:
        """The error of a pass that needs more."""

    @property
    def measuring(self) -> bool:
        """Whether a pass is being measured."""

    def measured(self) -> contextlib.AbstractContextManager[PassMemory]:
        """The span of one pass; what it gives is filled in when the pass is over. Not within another."""

    def give_back(self) -> None:
        """Gives back what is cached and in no use, after a pass that failed."""


class HalvedBudget(NamedTuple):
    """A budget that was halved. passes: "training" or "scoring". before, after: tokens."""

    passes: str
    before: int
    after: int


class FoundBudget:
    """The budget of one rank's passes of one kind, tokens of a micro-batch.

    passes: "training" or "scoring". A pass is taken to need a constant and so much for each token: the constant is that
    of the first two sizes that ran, one at least twice the other; the rest is the most that a recent large one took.
    """

    def __init__(self, memory: DeviceMemory, passes: str) -> None:
        self.memory, self.passes = memory, passes
        self.tokens = 1
        self.halved: list[HalvedBudget] = []
        """The halvings since someone took them away."""
        self._largest = 0
        self._ceiling = math.inf
        self._fitted = 0
        """The passes that fitted since one did not."""
        self._alone = False
        """Whether the last pass was of one completion, and did not fit."""
        self._first: tuple[int, int] | None = None
        self._constant: float | None = None
        self._recent: list[tuple[int, int]] = []

    def taken(self) -> list[HalvedBudget]:
        """The halvings since the last call."""
        found, self.halved = self.halved, []
        return found

    def run(self, items: Sequence[int], tokens: int, once: Callable[[], None]) -> bool:
        """Runs the pass of a micro-batch; whether it fitted. `once` leaves nothing behind where it fails. Raises the
        device's own error where a single completion does not fit, with the caches given back either."""
        fits = True
        try:
            with self.memory.measured() as seen:
                once()
        except self.memory.out_of_memory as error:
            if len(items) == 1 and self._alone:
                raise type(error)(
                    f"one completion of {tokens} tokens (prompt and response) needs more memory than the device has, "
                    f"and cannot be cut: shorten completions, or take gradient checkpointing ({error})"
                ) from error
            fits = False
        if fits:
            self._ran(tokens, seen)
        else:  # outside of the block: the error's traceback refers to all that the failed pass had
            self.memory.give_back()
            self._failed(tokens)
        self._alone = not fits and len(items) == 1
        return fits

    def _ran(self, tokens: int, seen: PassMemory) -> None:
        self._fitted += 1
        if self._fitted % PATIENCE == 0:
            self._ceiling *= GROWTH
        used = max(seen.peak - seen.resting, 0)
        self._largest = max(self._largest, tokens)
        kept = [*self._recent, (tokens, used)][-PATIENCE:]
        self._recent = [one for one in kept if 2 * one[0] >= self._largest]
        if self._first is None:
            self._first = tokens, used
        elif self._constant is None and tokens >= 2 * self._first[0]:
            least, first = self._first
            line = (first * tokens - used * least) / (tokens - least)
            self._constant = min(max(line, 0.0), float(first))
        constant = self._constant or 0.0
        per_token = max((max(bytes_ - constant, 0.0) / size for size, bytes_ in self._recent), default=0.0)
        room = SHARE * self.memory.limit - seen.resting - constant
        fits = room / per_token if per_token > 0 else math.inf
        wanted = max(int(min(fits, GROWTH * self._largest, self._ceiling)), 1)
        if wanted < self.tokens or wanted >= LEAST_CHANGE * self.tokens:
            self.tokens = wanted

    def _failed(self, tokens: int) -> None:
        before, self._fitted = self.tokens, 0
        self._ceiling = min(self._ceiling, BELOW_FAILED * tokens)
        self.tokens = max(min(before, tokens) // 2, 1)
        self.halved.append(HalvedBudget(self.passes, before, self.tokens))


def run_all(
    items: Sequence[int],
    budget: FoundBudget,
    *,
    cut: Callable[[Sequence[int], int], Sequence[Sequence[int]]],
    tokens: Callable[[Sequence[int]], int],
    once: Callable[[Sequence[int]], None],
) -> None:
    """Runs every item once, in micro-batches of the budget as it is by then.

    cut: micro-batches of some items by a budget. tokens: of a micro-batch. once: runs one; see `FoundBudget.run`.
    """
    cuts: list[Sequence[int]] = [items] if items else []
    cut_by = 0
    while cuts:
        if cut_by != budget.tokens:
            cut_by = budget.tokens
            cuts = list(cut([item for batch in cuts for item in batch], cut_by))
        if budget.run(cuts[0], tokens(cuts[0]), functools.partial(once, cuts[0])):
            del cuts[0]
