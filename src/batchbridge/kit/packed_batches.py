"""The spread of an optimizer step's completions over ranks and micro-batches where nothing is padded.

Completions lie end to end, and one prompt's share it: it is read once per micro-batch that holds any of them. As with
padding (`batchbridge.meaning.micro_batches`) it is not part of the meaning, and every rank gets equally many.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence

from batchbridge.errors import TooLong
from batchbridge.meaning.micro_batches import Length, MicroBatches, _to_count, linear


def partition_packed(
    lengths: Sequence[Length],
    prompts: Sequence[Hashable],
    *,
    ranks: int,
    tokens_per_device: int | None = None,
    completions_per_device: int | None = None,
    soft: bool = False,
    cost: Callable[[int], float] = linear,
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
    shares = _balanced(list(groups.values()), lengths, ranks, cost)
    cuts = [list(_cut(share, lengths, tokens_per_device, completions_per_device)) for share in shares]
    most = max(len(cut) for cut in cuts)
    responses = [length.response for length in lengths]
    return [_to_count(cut, most, responses) for cut in cuts]


def _balanced(
    groups: list[list[int]], lengths: Sequence[Length], ranks: int, cost: Callable[[int], float]
) -> list[list[list[int]]]:
    """Each rank's groups, or parts of them: whole ones while they fit into an equal share of the step, what is left
    over completion by completion, the costliest first, each to the rank with the least so far."""

    def own(item: int) -> float:
        return cost(lengths[item].tokens) - cost(lengths[item].prompt)

    def whole(group: Sequence[int]) -> float:
        return cost(lengths[group[0]].prompt) + sum(map(own, group))

    costs = [whole(group) for group in groups]
    equal = sum(costs) / ranks
    shares: list[dict[int, list[int]]] = [{} for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    left: list[tuple[float, int, int]] = []
    for number in sorted(range(len(groups)), key=lambda number: -costs[number]):
        load, rank = loads[0]
        # Of one rank, equal is the sum in another order of adding.
        if ranks == 1 or load + costs[number] <= equal:
            shares[rank][number] = list(groups[number])
            heapq.heapreplace(loads, (load + costs[number], rank))
        else:
            left += [(own(item), number, item) for item in groups[number]]
    for spent, number, item in sorted(left, key=lambda one: (-one[0], one[1], one[2])):
        load, rank = loads[0]
        spent += 0.0 if number in shares[rank] else cost(lengths[item].prompt)
        shares[rank].setdefault(number, []).append(item)
        heapq.heapreplace(loads, (load + spent, rank))
    return [list(share.values()) for share in shares]


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
