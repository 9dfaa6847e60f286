"""The cost of an optimizer step's micro-batches, and micro-batches that balance it over the ranks.

No part of the meaning: it decides when a completion is trained, and beside which others.
Trainers exchange metrics, and sharded ones weights, in every micro-batch: ranks run turn by turn, and a turn takes as
long as its slowest rank. So the ranks' micro-batches of one turn are made to cost the same, and not just their sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchbridge.meaning.micro_batches import Length, MicroBatches, partition_by_tokens

ASSUMED_OVERHEAD_TOKENS = 1024
"""The cost of one more micro-batch, in tokens: `overhead_tokens` of `partition_by_tokens`."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a micro-batch's forward and backward pass, by its size; that of one token is 1, padding included.

    micro_batch: of any, however small. pair: of each position and position of its row that it may attend to, counted
    as the row's width squared.
    """

    micro_batch: float = float(ASSUMED_OVERHEAD_TOKENS)
    pair: float = 0.0

    @classmethod
    def of_model(cls, config: Mapping[str, Any] | None) -> StepCost:
        """The cost by the operations that a model's `config.json` tells of; every token costs the same without one, and
        where it lacks a size.

        A token takes two operations for each weight of a matrix forward and four backward; of the experts that a router
        chooses from, those that it chooses. A pair takes two for each component of all heads in each of attention's
        products, two forward and five backward, and a causal kernel computes half of the pairs. Source: Dao 2023,
        arXiv:2307.08691, section 4.1.
        """
        weights, attention = _matrices(config or {})
        return cls(pair=7 * attention / (6 * weights) if weights else 0.0)

    def of_sequence(self, tokens: int) -> float:
        """The cost of a sequence of so many tokens, beside that of its micro-batch."""
        return tokens + self.pair * tokens * tokens

    def of(self, lengths: Sequence[Length], *, padded: bool = True) -> float:
        """The cost of a micro-batch of these completions.

        padded: each is as wide as the longest prompt and the longest response together; else they are laid end to end.
        """
        if not padded:
            return self.micro_batch + sum(self.of_sequence(length.tokens) for length in lengths)
        width = max((one.prompt for one in lengths), default=0) + max((one.response for one in lengths), default=0)
        return self.micro_batch + len(lengths) * self.of_sequence(width)


def _matrices(config: Mapping[str, Any]) -> tuple[float, float]:
    """Weights of the matrices that a token passes, the embedding left out, and components of all layers' heads."""

    def size(*names: str, other: int = 0) -> int:
        return next((int(config[name]) for name in names if isinstance(config.get(name), int)), other)

    hidden, layers = size("hidden_size", "n_embd"), size("num_hidden_layers", "n_layer")
    heads = size("num_attention_heads", "n_head", other=1)
    width = heads * size("head_dim", other=hidden // heads)
    shared = width * size("num_key_value_heads", other=heads) // heads
    dense = size("intermediate_size", "n_inner", other=4 * hidden)
    experts = size("num_experts_per_tok") * size("moe_intermediate_size", other=dense)
    gated = 2 if "n_embd" in config else 3
    feeding = gated * (experts + size("shared_expert_intermediate_size") if experts else dense)
    weights = layers * hidden * (2 * width + 2 * shared + feeding) + hidden * size("vocab_size")
    return float(weights), float(layers * width)


def step_cost(
    shares: Sequence[MicroBatches], lengths: Sequence[Length], cost: StepCost, *, padded: bool = True
) -> float:
    """The cost of a step in which every turn takes as long as its slowest rank; a filler costs a micro-batch's own."""
    total = 0.0
    for turn in zip(*shares, strict=True):
        parts = ([lengths[item] for item in batch if item is not None] for batch in turn)
        total += max(cost.of(part, padded=padded) for part in parts)
    return total


_ENDS_AT = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""A turn's first micro-batch ends when its padding has cost so many times what another micro-batch costs: each is
tried. 1 is the rule of `partition_by_tokens`; the best one depends on where the last turn falls."""
_SLACK = (1.0, 1.04, 1.1)
"""The others of a turn may cost so many times what its first one does: each is tried."""
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

    `padded`, `soft`, fillers and `TooLong` as in `partition_by_tokens`. By `step_cost` never worse than what that
    makes of the same cost of a completion. A turn is a stretch of the completions, the longest first: each rank takes
    neighbours until they cost what the first one's do. Deterministic; O(n log n), some twenty times over. Above
    `MOST_RANKS` ranks it is that of `partition_by_tokens`.
    """
    shares = partition_by_tokens(
        lengths, ranks=ranks, tokens_per_device=tokens_per_device, padded=padded, soft=soft, cost=cost.of_sequence
    )
    if ranks > MOST_RANKS:
        return shares
    order = sorted(range(len(lengths)), key=lambda item: (-lengths[item].tokens, -lengths[item].response, item))
    turns = _Turns([lengths[item] for item in order], ranks, tokens_per_device, cost, padded)
    least, best = step_cost(shares, lengths, cost, padded=padded), None
    for ends_at in _ENDS_AT if padded else _ENDS_AT[:1]:
        for slack in _SLACK if ranks > 1 else _SLACK[:1]:
            cuts = turns.all(ends_at * cost.micro_batch, slack)
            if (total := sum(turn.cost for turn in cuts)) < least:
                least, best = total, cuts
    if best is not None:
        by_rank = zip(*(turn.cuts for turn in best), strict=True)
        shares = [[[*order[start:stop]] or [None] for start, stop in cuts] for cuts in by_rank]
    return shares


class _Turn(NamedTuple):
    """One micro-batch of every rank: where each begins and ends, and the cost of the dearest."""

    cuts: list[tuple[int, int]]
    cost: float


class _Turns:
    """Ways to cut completions, the longest first, into turns."""

    def __init__(self, lengths: Sequence[Length], ranks: int, budget: int, cost: StepCost, padded: bool) -> None:
        self._prompts, self._responses = [one.prompt for one in lengths], [one.response for one in lengths]
        self._ranks, self._budget, self._cost, self._padded = ranks, budget, cost, padded

    def all(self, waste: float, slack: float) -> list[_Turn]:
        """The whole step. waste: cost of padding at which a turn's first micro-batch ends. slack: see `_SLACK`."""
        found: list[_Turn] = []
        start, count = 0, len(self._prompts)
        while start < count or not found:
            _, limit = self._run(start, float("inf"), waste)
            turn = self._turn(start, limit * slack)
            if turn.cuts[-1][1] == count:  # the last one: nobody is to wait for a fuller micro-batch
                low, high = limit / self._ranks, limit * slack
                for _ in range(_HALVINGS):
                    middle = (low + high) / 2
                    tried = self._turn(start, middle)
                    if tried.cuts[-1][1] < count:
                        low = middle
                    else:
                        high = middle
                        turn = min(turn, tried, key=lambda one: one.cost)
            found.append(turn)
            start = turn.cuts[-1][1]
        return found

    def _turn(self, start: int, limit: float) -> _Turn:
        """The turn that begins at `start`, in which every rank takes completions until they cost `limit`."""
        cuts: list[tuple[int, int]] = []
        dearest = 0.0
        for rank in range(self._ranks):
            stop, spent = self._run(start, limit, float("inf"), least=0 if rank else 1)
            cuts.append((start, stop))
            start, dearest = stop, max(dearest, spent)
        return _Turn(cuts, dearest)

    def _run(self, start: int, limit: float, waste: float, least: int = 1) -> tuple[int, float]:
        """The end of a micro-batch that begins at `start`, and its cost: before it costs more than `limit`, before
        its padding costs more than `waste`, and within the budget; `least` completions long at any rate."""
        cost, padded = self._cost, self._padded
        prompt = response = total = squares = 0
        reached = cost.micro_batch
        stop = start
        while stop < len(self._prompts):
            p, r = self._prompts[stop], self._responses[stop]
            rows, tokens = stop + 1 - start, p + r
            prompt, response = max(prompt, p), max(response, r)
            total, squares = total + tokens, squares + tokens * tokens
            width = prompt + response
            area = rows * width if padded else total
            own = total + cost.pair * squares
            here = area * (1.0 + cost.pair * width) if padded else own
            over = (rows > 1 and area > self._budget) or cost.micro_batch + here > limit or here - own > waste
            if over and rows > least:
                break
            stop, reached = stop + 1, cost.micro_batch + here
        return stop, reached
