"""A token budget that is found while a run goes on, on devices that are made up."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from batchbridge.kit.found_budgets import PATIENCE, SHARE, FoundBudget, PassMemory, run_all

LIMIT = 1_000_000


class Full(Exception):
    pass


class MadeUpMemory:
    """A device whose passes take what `takes` says of the items of a micro-batch."""

    out_of_memory: type[Exception] = Full
    measuring = False

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.resting, self.given_back = limit, 100_000, 0
        self.wants = 0

    @contextlib.contextmanager
    def measured(self) -> Iterator[PassMemory]:
        seen = PassMemory(resting=self.resting)
        yield seen
        seen.peak = self.resting + self.wants

    def give_back(self) -> None:
        self.given_back += 1


def rows_of(lengths: Sequence[int]) -> Callable[[Sequence[int], int], list[list[int]]]:
    def cut(items: Sequence[int], budget: int) -> list[list[int]]:
        cuts: list[list[int]] = []
        for item in sorted(items, key=lambda one: -lengths[one]):
            if cuts and (len(cuts[-1]) + 1) * lengths[cuts[-1][0]] <= budget:
                cuts[-1].append(item)
            else:
                cuts.append([item])
        return cuts

    return cut


def steps(
    budget: FoundBudget, memory: MadeUpMemory, takes: Callable[[int, int], float], count: int, outlier: int
) -> tuple[list[int], list[float]]:
    """The outliers of lognormal lengths run, and the memory of each pass that fitted as a share of the limit."""
    drawn, shares, times = random.Random(5), list[float](), list[int]()
    for number in range(count):
        lengths = [max(1, int(drawn.lognormvariate(math.log(200), 0.7))) for _ in range(32)]
        lengths[0] = outlier if number % 50 == 49 else lengths[0]
        lengths = [min(length, outlier) for length in lengths]
        done: list[int] = []

        def once(items: Sequence[int], done: list[int] = done, lengths: list[int] = lengths) -> None:
            memory.wants = int(takes(len(items), max(lengths[item] for item in items)))
            if memory.resting + memory.wants > memory.limit:
                raise Full("too much")
            shares.append((memory.resting + memory.wants) / memory.limit)
            done.extend(items)

        def tokens(items: Sequence[int], lengths: list[int] = lengths) -> int:
            return len(items) * max(lengths[item] for item in items)

        run_all(range(32), budget, cut=rows_of(lengths), tokens=tokens, once=once)
        times += sorted(done)
    return times, shares


@pytest.mark.parametrize("attention", [0.0, 0.02], ids=["linear", "with attention's square"])
def test_a_thousand_steps_from_a_cold_start_let_no_error_out(attention: float) -> None:
    memory = MadeUpMemory()
    budget = FoundBudget(memory, "training")

    def takes(rows: int, width: int) -> float:
        return 5_000 + rows * width * (90 + attention * width)

    times, shares = steps(budget, memory, takes, 1000, outlier=4000)
    assert times == [*range(32)] * 1000, "every completion of every step has run once"
    assert len(budget.taken()) == memory.given_back <= 25
    # By the count of passes, once the first steps are over.
    later = shares[len(shares) // 10 :]
    assert max(later) <= 1.0
    assert sorted(later)[-len(later) // 20] > SHARE - 0.2


def test_a_device_that_loses_memory_halves_the_budget_and_gets_it_back() -> None:
    memory = MadeUpMemory()
    budget = FoundBudget(memory, "training")
    steps(budget, memory, lambda rows, width: rows * width * 90.0, 20, outlier=1000)
    before = budget.tokens
    memory.resting = 600_000
    steps(budget, memory, lambda rows, width: rows * width * 90.0, 20, outlier=1000)
    assert budget.tokens <= before / 2
    assert [(one.passes, one.after < one.before) for one in budget.taken()][:1] == [("training", True)]
    memory.resting = 100_000
    steps(budget, memory, lambda rows, width: rows * width * 90.0, 4 * PATIENCE, outlier=1000)
    assert budget.tokens > 0.8 * before


def test_a_completion_that_fails_twice_alone_raises_the_devices_error() -> None:
    memory = MadeUpMemory()
    budget = FoundBudget(memory, "scoring")
    with pytest.raises(Full, match=r"one completion of 9000 tokens .* cannot be cut"):
        steps(budget, memory, lambda rows, width: rows * width * 200.0, 50, outlier=9000)
    assert memory.given_back >= 1


def test_other_errors_are_nobodys_memory() -> None:
    def broken(items: Sequence[int]) -> None:
        raise ValueError("no memory error")

    budget = FoundBudget(MadeUpMemory(), "training")
    with pytest.raises(ValueError, match="no memory error"):
        run_all([1, 2], budget, cut=rows_of([1, 1, 1]), tokens=len, once=broken)
    assert budget.taken() == []
