"""The spread of an optimizer step's completions over ranks and micro-batches.

No part of the meaning: with weights at optimizer-step scope any partition gives the same gradient. What every partition
must keep is that all ranks run the same number of micro-batches, because trainers communicate inside them; what is
missing is filled with `None`, a row that weighs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from batchbridge.errors import TooLong

MicroBatches = list[list[int | None]]
"""One rank's micro-batches: positions in the step, or None for a filler row."""


def partition(costs: Sequence[int], *, ranks: int, completions_per_device: int) -> list[MicroBatches]:
    """Micro-batches of at most `completions_per_device` completions, for each rank.

    `costs[i]` is completion i's token count. Micro-batches of the same turn have the same size on every rank.
    Completions of similar length share a micro-batch, so that little is padded, and the ranks' loads are balanced by
    dealing each row of `ranks` completions in alternating direction. Deterministic.
    """
    if ranks < 1 or completions_per_device < 1:
        raise ValueError(f"ranks = {ranks}, completions_per_device = {completions_per_device}: must be at least 1")
    by_length = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    per_round = ranks * completions_per_device
    result: list[MicroBatches] = [[] for _ in range(ranks)]
    for start in range(0, len(by_length), per_round):
        chunk: list[int | None] = list(by_length[start : start + per_round])
        chunk += [None] * (-len(chunk) % ranks)
        hands: MicroBatches = [[] for _ in range(ranks)]
        for turn, first in enumerate(range(0, len(chunk), ranks)):
            row = chunk[first : first + ranks]
            for hand, item in zip(hands if turn % 2 == 0 else reversed(hands), row, strict=True):
                hand.append(item)
        for rank, hand in enumerate(hands):
            result[rank].append(hand)
    return result


@dataclass(frozen=True)
class Length:
    """Tokens of one completion: its prompt's and its response's."""

    prompt: int
    response: int

    @property
    def tokens(self) -> int:
        """Prompt and response together: what a forward pass reads."""
        return self.prompt + self.response


def linear(tokens: int) -> float:
    """The cost of a completion where attention is cheap: its tokens."""
    return float(tokens)


def partition_by_tokens(
    lengths: Sequence[Length],
    *,
    ranks: int,
    tokens_per_device: int,
    padded: bool = True,
    soft: bool = False,
    cost: Callable[[int], float] = linear,
    overhead_tokens: int = 1024,
) -> list[MicroBatches]:
    """Micro-batches of at most `tokens_per_device` tokens (prompt and response), equally many for each rank.

    padded: a micro-batch takes rows x (longest prompt + longest response) tokens, else the sum of its completions'.
    soft: a completion longer than the budget runs alone; else it raises `TooLong`. cost: of a completion of so many
    tokens, what the ranks' loads are balanced by. overhead_tokens: what one more micro-batch costs, in tokens; with
    `padded`, a micro-batch ends before its padding exceeds it. Completions of similar length share a micro-batch, the
    longest come first, on every rank alike. A rank with fewer completions than the others have micro-batches gets
    micro-batches of one filler, `[None]`. Deterministic; O(n log n).
    """
    if ranks < 1 or tokens_per_device < 1:
        raise ValueError(f"ranks = {ranks}, tokens_per_device = {tokens_per_device}: must be at least 1")
    prompts, responses = [length.prompt for length in lengths], [length.response for length in lengths]
    tokens = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    longest_first = sorted(range(len(lengths)), key=responses.__getitem__, reverse=True)
    longest_first.sort(key=tokens.__getitem__, reverse=True)  # equal ones stay as they are: a longer response first
    if longest_first and not soft and tokens[longest_first[0]] > tokens_per_device:
        raise TooLong(longest_first[0], tokens[longest_first[0]], tokens_per_device)
    shares = _balance(longest_first, [cost(count) for count in tokens], ranks)
    waste = overhead_tokens if padded else None
    cuts = [_cut(share, prompts, responses, tokens_per_device, waste) for share in shares]
    most = max(len(cut) for cut in cuts)
    return [_to_count(cut, most, tokens) for cut in cuts]


def _balance(longest_first: Sequence[int], costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Each rank's completions, still the longest first: every one goes to the rank with the least load so far."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    for item in longest_first:
        load, rank = loads[0]
        shares[rank].append(item)
        heapq.heapreplace(loads, (load + costs[item], rank))
    return shares


def _cut(
    share: Sequence[int], prompts: Sequence[int], responses: Sequence[int], budget: int, waste: int | None
) -> list[list[int]]:
    """Runs of neighbours within the budget, as long as padding stays below `waste`; None: nothing is padded.

    Ending a run when its padding has cost as much as another run would, is at most twice the least possible sum of
    both: the argument of the ski-rental problem.
    """
    runs: list[list[int]] = []
    longest_prompt = longest_response = total = rows = 0
    for item in share:
        prompt, response = prompts[item], responses[item]
        longest_prompt = max(longest_prompt, prompt)
        longest_response = max(longest_response, response)
        total, rows = total + prompt + response, rows + 1
        area = total if waste is None else rows * (longest_prompt + longest_response)
        if not runs or area > budget or (waste is not None and area - total > waste):
            runs.append([])
            longest_prompt, longest_response, total, rows = prompt, response, prompt + response, 1
        runs[-1].append(item)
    return runs


def _to_count(runs: list[list[int]], count: int, tokens: Sequence[int]) -> list[list[int | None]]:
    """`runs` split further until there are `count`: the one with the most tokens in half, and again; then fillers."""
    heap = [(-sum(tokens[item] for item in run), place, run) for place, run in enumerate(runs) if len(run) > 1]
    heapq.heapify(heap)
    done: list[list[int]] = [run for run in runs if len(run) == 1]
    while heap and len(heap) + len(done) < count:
        total, place, run = heapq.heappop(heap)
        middle = _half(run, tokens, -total)
        for part in (run[:middle], run[middle:]):
            if len(part) > 1:
                heapq.heappush(heap, (-sum(tokens[item] for item in part), place, part))
            else:
                done.append(part)
    split: list[list[int]] = [*done, *(run for _, _, run in heap)]
    split.sort(key=lambda run: (-tokens[run[0]], run[0]))
    fillers: list[list[int | None]] = [[None] for _ in range(count - len(split))]
    return [*(list[int | None](run) for run in split), *fillers]


def _half(run: Sequence[int], tokens: Sequence[int], total: int) -> int:
    """The place to cut `run` so that both sides have about half of its tokens, and neither is empty."""
    sums = list(accumulate(tokens[item] for item in run))
    middle = next(place for place, reached in enumerate(sums, 1) if 2 * reached >= total)
    return min(max(middle, 1), len(run) - 1)
