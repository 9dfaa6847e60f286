"""The spread of an optimizer step's completions over ranks and micro-batches where nothing is padded.

Completions lie end to end, and one prompt's share it: it is read once per micro-batch that holds any of them. As with
padding (`batchbridge.meaning.micro_batches`) it is not part of the meaning, and every rank gets equally many.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batchbridge.errors import TooLong
from batchbridge.kit.ranks import best_exchange
from batchbridge.meaning.micro_batches import Length, MicroBatches, linear


def partition_packed(
    lengths: Sequence[Length],
    prompts: Sequence[Hashable],
    *,
    ranks: int,
    tokens_per_device: int | None = None,
    completions_per_device: int | None = None,
    soft: bool = False,
    cost: Callable[[int], float] = linear,
    overhead_tokens: int = 1024,
) -> list[MicroBatches]:
    """Micro-batches of completions that lie end to end, equally many for each rank.

    prompts: what tells the completions' prompts apart; those of one prompt stay together, as far as ranks and
    micro-batches allow. tokens_per_device: a micro-batch's tokens at most, each of its prompts counted once; or
    completions_per_device: its completions. soft: a completion longer than the budget runs alone; else it raises
    `TooLong`. cost: of a sequence of so many tokens. Deterministic; O(n log n).
    """
    if ranks < 1 or (tokens_per_device is None) == (completions_per_device is None):
        raise ValueError("give at least one rank, and tokens_per_device or completions_per_device, one of them")
    if min(size for size in (tokens_per_device, completions_per_device) if size is not None) < 1:
        raise ValueError(f"{tokens_per_device or completions_per_device} per device: must be at least 1")
    if tokens_per_device is not None and not soft:
        longest = max(range(len(lengths)), key=lambda item: lengths[item].tokens, default=None)
        if longest is not None and lengths[longest].tokens > tokens_per_device:
            raise TooLong(longest, lengths[longest].tokens, tokens_per_device)
    groups: dict[Hashable, list[int]] = {}
    for item, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(item)
    for group in groups.values():
        group.sort(key=lambda item: -lengths[item].response)
    if ranks == 1:
        return [[[*run] for run in _cut(list(groups.values()), lengths, tokens_per_device, completions_per_device)]]
    balanced = _Balanced(list(groups.values()), lengths, tokens_per_device, completions_per_device, cost)
    return _in_turns(balanced, ranks, overhead_tokens)


_MORE_TURNS = 3
"""More turns than the fewest that hold a step, each of which is tried."""
_ALONE = (0.0, 0.1, 0.25, math.inf)
"""The costs, in a micro-batch's equal share, above which a completion of a group that is left over is placed alone, and
below which in parts of the group. Each is tried."""


_EXCHANGES = 4
"""The most exchanges of completions within a turn, for each rank."""
_MOST_RANKS = 256
"""The most ranks for which several are tried: every rank tries for all, which would take seconds of each step."""


def _in_turns(balanced: _Balanced, ranks: int, overhead: float) -> list[MicroBatches]:
    """Every rank's micro-batches: those of one turn cost about the same, and so do the ranks' sums."""
    turns, least, best = balanced.fewest(ranks), math.inf, list[_Batch]()
    last, ways = (turns + _MORE_TURNS, _ALONE) if ranks <= _MOST_RANKS else (turns, _ALONE[2:3])
    while turns <= last or not best:
        for alone in ways:
            if (found := balanced.batches(turns * ranks, alone)) is None:
                continue
            found.sort(key=lambda batch: -batch.cost)
            if (total := sum(batch.cost + overhead for batch in found[::ranks])) < least:
                least, best = total, found
        turns = turns + 1 if turns < last else max(turns + 1, turns * 9 // 8)
    shares: list[MicroBatches] = [[] for _ in range(ranks)]
    spent = [0.0] * ranks
    for start in range(0, len(best), ranks):
        balanced.exchange(turn := best[start : start + ranks])
        least_first = sorted(range(ranks), key=spent.__getitem__)
        for rank, batch in zip(least_first, sorted(turn, key=lambda batch: -batch.cost), strict=True):
            shares[rank].append([item for part in batch.parts.values() for item in part] or [None])
            spent[rank] += batch.cost
    return shares


@dataclass(eq=False)
class _Batch:
    """A micro-batch as it is filled. parts: completions of each group, by its number; its prompt is read once."""

    cost: float = 0.0
    tokens: int = 0
    completions: int = 0
    parts: dict[int, list[int]] = field(default_factory=dict)


class _Balanced:
    """Ways to spread groups over so many micro-batches that cost the same. groups: the longest completion first."""

    def __init__(
        self,
        groups: list[list[int]],
        lengths: Sequence[Length],
        tokens: int | None,
        completions: int | None,
        cost: Callable[[int], float],
    ) -> None:
        self._groups, self._lengths = groups, lengths
        self._tokens, self._completions = tokens or math.inf, completions or math.inf
        self._shortest = min((length.response for length in lengths), default=0)
        self._prompts = [lengths[group[0]].prompt for group in groups]
        self._prompt_costs = [cost(prompt) for prompt in self._prompts]
        self._own = [cost(length.tokens) - cost(length.prompt) for length in lengths]
        self._costs = [
            prompt + sum(self._own[item] for item in group)
            for prompt, group in zip(self._prompt_costs, groups, strict=True)
        ]

    def fewest(self, ranks: int) -> int:
        """Turns that there are at least, if every micro-batch is full."""
        tokens = sum(self._prompts) + sum(length.response for length in self._lengths)
        return max(1, math.ceil(max(tokens / self._tokens, len(self._lengths) / self._completions) / ranks))

    def batches(self, count: int, alone: float) -> list[_Batch] | None:
        """`count` micro-batches: whole groups while they fit into an equal share of the step, then what is left over,
        the dear ones completion by completion, each to the one with the least so far. None: they do not hold all.
        alone: as `_ALONE`."""
        equal = sum(self._costs) / count * (1 + 1e-9)  # of one alone, it is the sum in another order of adding
        batches = [_Batch() for _ in range(count)]
        loads = [(0.0, number) for number in range(count)]
        left: list[tuple[int, list[int]]] = []
        for group in sorted(range(len(self._groups)), key=lambda group: -self._costs[group]):
            items, (load, number) = self._groups[group], loads[0]
            if load + self._costs[group] <= equal:
                items = self._fill(batches[number], group, items, equal)
                heapq.heapreplace(loads, (batches[number].cost, number))
            if items:  # all, or what the budget left
                left.append((group, items))
        apart = [(group, [item]) for group, items in left for item in items if self._own[item] > alone * equal]
        apart.sort(key=lambda one: -self._own[one[1][0]])
        parts = [(group, [item for item in items if self._own[item] <= alone * equal]) for group, items in left]
        for group, items in (*apart, *parts):
            while items:
                seen = []
                while loads:
                    _, number = heapq.heappop(loads)
                    rest = self._fill(batches[number], group, items, equal)
                    if not self._full(batches[number]):
                        seen.append((batches[number].cost, number))
                    if len(rest) < len(items):
                        break
                else:
                    return None
                items = rest
                for one in seen:
                    heapq.heappush(loads, one)
        return batches

    def exchange(self, turn: list[_Batch]) -> None:
        """Completions of a turn's dearest micro-batch for cheaper ones of its cheapest, while that makes it cheaper."""
        for _ in range(_EXCHANGES * len(turn)):
            dear, cheap = max(turn, key=lambda batch: batch.cost), min(turn, key=lambda batch: batch.cost)
            held = [{item: group for group, part in batch.parts.items() for item in part} for batch in (dear, cheap)]
            pair = best_exchange([*held[0]], [*held[1]], self._own, dear.cost - cheap.cost)
            if pair is None:
                return
            given, taken = pair
            held[1][given], held[0][taken] = held[0].pop(given), held[1].pop(taken)
            made = [self._batch_of(each) for each in held]
            if any(each is None or each.cost >= dear.cost for each in made):
                return
            for place, each in zip((turn.index(dear), turn.index(cheap)), made, strict=True):
                assert each is not None, "asked above"
                turn[place] = each

    def _batch_of(self, held: Mapping[int, int]) -> _Batch | None:
        """A micro-batch of these completions, each with its group; None: they are more than it holds."""
        batch = _Batch()
        for item in sorted(held, key=lambda item: (held[item], -self._lengths[item].response)):
            if self._fill(batch, held[item], [item], math.inf):
                return None
        return batch

    def _full(self, batch: _Batch) -> bool:
        return batch.completions >= self._completions or batch.tokens + self._shortest > self._tokens

    def _fill(self, batch: _Batch, group: int, items: Sequence[int], equal: float) -> list[int]:
        """Puts completions of a group into `batch` while it costs at most `equal`, one at any rate, and returns those
        that do not fit."""
        left: list[int] = []
        taken = False
        for item in items:
            fresh = group not in batch.parts
            tokens = self._lengths[item].response + (self._prompts[group] if fresh else 0)
            cost = self._own[item] + (self._prompt_costs[group] if fresh else 0.0)
            over = batch.tokens + tokens > self._tokens or batch.completions >= self._completions
            if batch.parts and (over or (taken and batch.cost + cost > equal)):
                left.append(item)
                continue
            batch.parts.setdefault(group, []).append(item)
            batch.cost, batch.tokens = batch.cost + cost, batch.tokens + tokens
            batch.completions, taken = batch.completions + 1, True
        return left


def _cut(
    groups: Sequence[Sequence[int]], lengths: Sequence[Length], tokens: int | None, completions: int | None
) -> Iterator[list[int]]:
    """A rank's micro-batches: whole groups where one of them fits at all, each part of a cut one with its prompt."""
    run: list[int] = []
    used = 0

    def fits(prompt: int, items: Sequence[int], used: int, held: int) -> bool:
        if completions is not None:
            return held + len(items) <= completions
        assert tokens is not None
        return used + prompt + sum(lengths[item].response for item in items) <= tokens

    for group in groups:
        prompt = lengths[group[0]].prompt
        if run and not fits(prompt, group, used, len(run)) and fits(prompt, group, 0, 0):
            yield run
            run, used = [], 0
        here = False
        for item in group:
            if run and not fits(0 if here else prompt, [item], used, len(run)):
                yield run
                run, used, here = [], 0, False
            used += lengths[item].response + (0 if here else prompt)
            run.append(item)
            here = True
    if run or not groups:
        yield run
