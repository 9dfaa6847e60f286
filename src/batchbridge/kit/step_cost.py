"""The cost of an optimizer step's micro-batches, fitted to their measured times, and micro-batches that balance it.

No part of the meaning: it decides when a completion is trained, and beside which others.
Trainers exchange metrics, and sharded ones weights, in every micro-batch: ranks run turn by turn, and a turn takes as
long as its slowest rank. So the ranks' micro-batches of one turn are made to cost the same, and not just their sums.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchbridge.meaning.micro_batches import Length, MicroBatches, partition_by_tokens

Terms = tuple[float, float, float, float]
"""The terms that a micro-batch's seconds are made of: 1, its positions, the sum of its rows' squared widths, and its
response positions. Padding counts."""

ASSUMED_OVERHEAD_TOKENS = 1024
"""The cost of one more micro-batch before anything was measured, in tokens: `overhead_tokens` of
`partition_by_tokens`."""


def micro_batch_terms(lengths: Sequence[Length], *, padded: bool = True) -> Terms:
    """The terms of a micro-batch of these completions.

    padded: each is as wide as the longest prompt and the longest response together; else they are laid end to end.
    """
    rows = len(lengths)
    if not padded:
        tokens = [length.tokens for length in lengths]
        squares, responses = sum(count * count for count in tokens), sum(length.response for length in lengths)
        return 1.0, float(sum(tokens)), float(squares), float(responses)
    response = max((length.response for length in lengths), default=0)
    width = max((length.prompt for length in lengths), default=0) + response
    return 1.0, float(rows * width), float(rows * width * width), float(rows * response)


def packed_terms(lengths: Sequence[Length], prompts: Sequence[Hashable]) -> Terms:
    """The terms of completions that lie end to end, each prompt once and its completions behind it. prompts: what tells
    them apart."""
    once = {prompt: length.prompt for length, prompt in zip(lengths, prompts, strict=True)}
    responses = sum(length.response for length in lengths)
    squares = sum(length.tokens**2 - length.prompt**2 for length in lengths) + sum(count**2 for count in once.values())
    return 1.0, float(sum(once.values()) + responses), float(squares), float(responses)


@dataclass(frozen=True)
class StepCost:
    """The seconds of a micro-batch's forward and backward pass, by its size; before a fit, in units of one token's.

    micro_batch: seconds of any, however small. token: of each position, padding included. pair: of each position and
    position of its row that it may attend to, counted as the row's width squared. response: of each position of the
    longest response, in every row: what the head and the loss take beside `token`. slowness: seconds of each rank over
    those that the other terms say; empty: 1 for every rank.
    """

    micro_batch: float = float(ASSUMED_OVERHEAD_TOKENS)
    token: float = 1.0
    pair: float = 0.0
    response: float = 0.0
    slowness: tuple[float, ...] = ()

    @classmethod
    def assumed(cls, hidden_size: int | None = None) -> StepCost:
        """The cost before anything was measured, attention as in `with_attention`; None: attention is cheap."""
        return cls(pair=1 / (6 * hidden_size) if hidden_size else 0.0)

    def seconds(self, lengths: Sequence[Length], *, padded: bool = True) -> float:
        """The seconds of a micro-batch of these completions, on a rank of slowness 1."""
        return self.of(micro_batch_terms(lengths, padded=padded))

    def of(self, one: Terms) -> float:
        """Seconds of a micro-batch with these terms."""
        return self.micro_batch * one[0] + self.token * one[1] + self.pair * one[2] + self.response * one[3]

    def slowness_of(self, rank: int) -> float:
        """Seconds of `rank` over those of a rank of slowness 1."""
        return self.slowness[rank] if self.slowness else 1.0


def step_seconds(
    shares: Sequence[MicroBatches], lengths: Sequence[Length], cost: StepCost, *, padded: bool = True
) -> float:
    """Seconds of a step in which every turn takes as long as its slowest rank; a filler costs a micro-batch's own."""
    total = 0.0
    for turn in zip(*shares, strict=True):
        parts = ([lengths[item] for item in batch if item is not None] for batch in turn)
        total += max(cost.seconds(part, padded=padded) * cost.slowness_of(rank) for rank, part in enumerate(parts))
    return total


# ---- fitting


class Observed(NamedTuple):
    """The measured seconds of one micro-batch's forward and backward pass on one rank."""

    rank: int
    terms: Terms
    seconds: float


LEAST_OBSERVED = 4
"""Micro-batches below which nothing is fitted."""
_SLOWEST = 2.0
"""The bound of a rank's slowness, and of its inverse below: what is farther off says little of the next step."""
LEAST_OF_RANK = 16
"""Micro-batches of each rank below which no rank is called slow: one that had the small ones only would be."""
_PULL = 0.1
"""The weight of what was assumed beside one observation: a few noisy ones are not to turn it round, and equal
micro-batches leave the terms' ratios to it."""
_ROUNDS = 8
_OFF = 0.1
"""A relative deviation that still counts in full; a larger one counts less (Cauchy's weights)."""
_ALIKE = 0.05
"""Ranks whose seconds differ by less, or by less than their noise explains, are taken for equally fast."""


def fit_cost(observed: Sequence[Observed], assumed: StepCost, *, ranks: int) -> StepCost:
    """The cost that fits the observations best, by least squares of relative deviations; no term is below 0.

    assumed: the terms' ratios where the observations leave them open, as equal lengths do. It is returned as it is for
    less than `LEAST_OBSERVED` observations. Outliers count less: a micro-batch that the machine interrupted does not
    move the fit. Deterministic, in plain floats.
    """
    usable = [one for one in observed if one.seconds > 0.0]
    if len(usable) < LEAST_OBSERVED:
        return assumed
    prior = (assumed.micro_batch, assumed.token, assumed.pair, assumed.response)
    scale = statistics.median(one.seconds / assumed.of(one.terms) for one in usable)
    pulled = [scale * value for value in prior]
    counts = Counter(one.rank for one in usable)
    fewest = min(counts[rank] for rank in range(ranks))
    found, slowness, trust, middle = pulled, [1.0] * ranks, [1.0] * len(usable), 0.0
    for _ in range(_ROUNDS):
        # Each row times the terms' seconds is 1, where the fit is exact.
        rows = [[slowness[one.rank] * term / one.seconds for term in one.terms] for one in usable]
        found = _least_squares(rows, trust, pulled)
        said = [sum(a * b for a, b in zip(row, found, strict=True)) for row in rows]
        if fewest >= LEAST_OF_RANK:
            slowness = _slowness(usable, said, slowness)
        middle = statistics.median(abs(value - 1.0) for value in said)
        width = max(3.0 * middle, _OFF)
        trust = [1.0 / (1.0 + ((value - 1.0) / width) ** 2) for value in said]
    alike = fewest == 0 or max(slowness) - min(slowness) < max(_ALIKE, 3.0 * middle / fewest**0.5)
    micro_batch, token, pair, response = found
    return StepCost(micro_batch, token, pair, response, () if alike else tuple(slowness))


def _slowness(usable: Sequence[Observed], said: Sequence[float], before: Sequence[float]) -> list[float]:
    """Each rank's seconds over the fitted ones, 1 on the ranks' mean; `said`: fitted over measured, by observation."""
    by_rank: list[list[float]] = [[] for _ in before]
    for one, value in zip(usable, said, strict=True):
        by_rank[one.rank].append(before[one.rank] / value if value else 1.0)
    found = [statistics.median(values) if values else 1.0 for values in by_rank]
    mean = sum(found) / len(found)
    return [min(max(value / mean, 1.0 / _SLOWEST), _SLOWEST) for value in found]


def _least_squares(rows: Sequence[Sequence[float]], trust: Sequence[float], pulled: Sequence[float]) -> list[float]:
    """x >= 0 with the least sum of trust * (row . x - 1)^2, and a little towards `pulled`.

    Terms that would be negative are left out, the worst first, until none is.
    """
    weight = sum(trust)
    sizes = [sum(t * row[k] * row[k] for t, row in zip(trust, rows, strict=True)) / weight for k in range(4)]
    kept = [k for k in range(4) if sizes[k] > 0.0]
    while True:
        matrix = [[sum(t * row[i] * row[j] for t, row in zip(trust, rows, strict=True)) for j in kept] for i in kept]
        right = [sum(t * row[i] for t, row in zip(trust, rows, strict=True)) for i in kept]
        for place, k in enumerate(kept):
            matrix[place][place] += _PULL * sizes[k]
            right[place] += _PULL * sizes[k] * pulled[k]
        solved = _solve(matrix, right)
        worst = min(range(len(kept)), key=lambda place: solved[place] * sizes[kept[place]] ** 0.5)
        if solved[worst] >= 0.0 or len(kept) == 1:
            result = [0.0] * 4
            for k, value in zip(kept, solved, strict=True):
                result[k] = max(value, 0.0)
            return result
        kept.pop(worst)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a small symmetric positive definite system, by elimination."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
            right[j] -= factor * right[i]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (right[i] - sum(matrix[i][j] * found[j] for j in range(i + 1, size))) / matrix[i][i]
    return found


# ---- micro-batches

_ENDS_AT = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""A turn's first micro-batch ends when its padding has cost so many times what another micro-batch costs: each is
tried. 1 is the rule of `partition_by_tokens`; the best one depends on where the last turn falls."""
_SLACK = (1.0, 1.04, 1.1)
"""The others of a turn may take so many times its first one's seconds: each is tried."""
_HALVINGS = 8
MOST_RANKS = 256
"""The most ranks whose turns are balanced: every rank tries for all of them, which would take seconds of each step."""


def partition_by_cost(
    lengths: Sequence[Length],
    *,
    ranks: int,
    tokens_per_device: int,
    cost: StepCost,
    padded: bool = True,
    soft: bool = False,
) -> list[MicroBatches]:
    """Micro-batches of at most `tokens_per_device` tokens, equally many for each rank, of which those of one turn cost
    the same.

    `padded`, `soft`, fillers and `TooLong` as in `partition_by_tokens`. By `step_seconds` never worse than what that
    makes of the same cost of a completion. A turn is a stretch of the completions, the longest first: each rank takes
    neighbours until they cost what the first one's do. Deterministic; O(n log n), some twenty times over. Above
    `MOST_RANKS` ranks it is that of `partition_by_tokens`.
    """
    shares = partition_by_tokens(
        lengths,
        ranks=ranks,
        tokens_per_device=tokens_per_device,
        padded=padded,
        soft=soft,
        cost=lambda tokens: cost.token * tokens + cost.pair * tokens * tokens,
    )
    if ranks > MOST_RANKS:
        return shares
    order = sorted(range(len(lengths)), key=lambda item: (-lengths[item].tokens, -lengths[item].response, item))
    turns = _Turns([lengths[item] for item in order], ranks, tokens_per_device, cost, padded)
    least, best = step_seconds(shares, lengths, cost, padded=padded), None
    for ends_at in _ENDS_AT if padded else _ENDS_AT[:1]:
        for slack in _SLACK if ranks > 1 else _SLACK[:1]:
            cuts = turns.all(ends_at * cost.micro_batch, slack)
            if (seconds := sum(turn.seconds for turn in cuts)) < least:
                least, best = seconds, cuts
    if best is not None:
        by_rank = zip(*(turn.cuts for turn in best), strict=True)
        shares = [[[*order[start:stop]] or [None] for start, stop in cuts] for cuts in by_rank]
    return shares


class _Turn(NamedTuple):
    """One micro-batch of every rank: where each begins and ends, and the seconds of the slowest."""

    cuts: list[tuple[int, int]]
    seconds: float


class _Turns:
    """Ways to cut completions, the longest first, into turns."""

    def __init__(self, lengths: Sequence[Length], ranks: int, budget: int, cost: StepCost, padded: bool) -> None:
        self._prompts, self._responses = [one.prompt for one in lengths], [one.response for one in lengths]
        self._budget, self._cost, self._padded = budget, cost, padded
        self._slowness = [cost.slowness_of(rank) for rank in range(ranks)]
        self._by_speed = sorted(range(ranks), key=self._slowness.__getitem__)
        """The fastest rank takes the longest completions, which no other may be able to run in the same time."""

    def all(self, waste: float, slack: float) -> list[_Turn]:
        """The whole step. waste: seconds of padding at which a turn's first micro-batch ends. slack: see `_SLACK`."""
        found: list[_Turn] = []
        start, count, first = 0, len(self._prompts), self._slowness[self._by_speed[0]]
        while start < count or not found:
            _, limit = self._run(start, float("inf"), waste)
            turn = self._turn(start, limit * first * slack)
            if turn.cuts[self._by_speed[-1]][1] == count:  # the last one: nobody is to wait for a fuller micro-batch
                low, high = limit * first / len(self._slowness), limit * first * slack
                for _ in range(_HALVINGS):
                    middle = (low + high) / 2
                    tried = self._turn(start, middle)
                    if tried.cuts[self._by_speed[-1]][1] < count:
                        low = middle
                    else:
                        high = middle
                        turn = min(turn, tried, key=lambda one: one.seconds)
            found.append(turn)
            start = turn.cuts[self._by_speed[-1]][1]
        return found

    def _turn(self, start: int, limit: float) -> _Turn:
        """The turn that begins at `start`, in which every rank takes completions until they cost `limit` seconds."""
        cuts, seconds = [(start, start)] * len(self._slowness), 0.0
        for rank in self._by_speed:
            least = 1 if rank == self._by_speed[0] else 0
            stop, took = self._run(start, limit / self._slowness[rank], float("inf"), least)
            cuts[rank] = (start, stop)
            start, seconds = stop, max(seconds, took * self._slowness[rank])
        return _Turn(cuts, seconds)

    def _run(self, start: int, limit: float, waste: float, least: int = 1) -> tuple[int, float]:
        """The end of a micro-batch that begins at `start`, and its seconds: before it costs more than `limit`, before
        its padding costs more than `waste`, and within the budget; `least` completions long at any rate."""
        cost, padded = self._cost, self._padded
        prompt = response = total = squares = responses = 0
        reached = cost.micro_batch
        stop = start
        while stop < len(self._prompts):
            p, r = self._prompts[stop], self._responses[stop]
            rows, tokens = stop + 1 - start, p + r
            prompt, response = max(prompt, p), max(response, r)
            total, squares, responses = total + tokens, squares + tokens * tokens, responses + r
            width = prompt + response
            area = rows * width if padded else total
            own = cost.token * total + cost.pair * squares + cost.response * responses
            here = area * (cost.token + cost.pair * width) + cost.response * rows * response if padded else own
            seconds = cost.micro_batch + here
            over = (rows > 1 and area > self._budget) or seconds > limit or here - own > waste
            if over and rows > least:
                break
            stop, reached = stop + 1, seconds
        return stop, reached
