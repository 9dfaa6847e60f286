"""The share of a rollout that ranks hold, and how they run it together. Pure; knows no framework.

For trainers whose ranks hold their completions before a step is cut: who holds a completion is given, what is decided
is in which micro-batches each rank runs its own, and that all ranks run equally many, because they communicate inside.
"""

from __future__ import annotations

import bisect
import heapq
import re
from collections.abc import Sequence

from batchbridge.meaning.micro_batches import Length, MicroBatches, partition, partition_by_tokens
from batchbridge.meaning.plan import Plan, StepPlan


def waited_too_long(error: BaseException) -> bool:
    """Whether an error says that this rank waited for another one until the time-out of their process group.

    Source: the texts of torch 2.13.0's gloo and NCCL backends.
    """
    said = r"timed out waiting|application timeout|collective operation timeout|wait timeout"
    return re.search(said, str(error), re.IGNORECASE) is not None


def steps_of_rollout(plan: Plan, rollout: int) -> list[StepPlan]:
    """The optimizer steps that train on `rollout` alone, in order; none where its rows are all dropped."""
    steps, index = [], plan.rollout(rollout).generated_at_step
    while index < plan.total_optimizer_steps and plan.step(index).rollouts == (rollout,):
        steps.append(plan.step(index))
        index += 1
    return steps


def steps_cross_rollouts(plan: Plan) -> bool:
    """Whether some optimizer step draws from two rollouts."""
    span = plan.spec.optimizer_step.step_may_span
    if span in ("none", "rollout"):
        return False
    passes = plan.passes_per_rollout * plan.completions_per_prompt
    sizes = {plan.prompts_per_rollout * passes}
    if plan.spec.order.last_rollout in ("short", "pad"):
        sizes.add(plan.dataset_size % plan.prompts_per_rollout * passes)
    return any(size % plan.completions_per_step for size in sizes)


_EVEN = 1.002
"""The load, in the ranks' mean, below which a rank gives nothing away."""
_SWEEPS = 16


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Each rank's completions of one step, by number: equally many, give or take one, and balanced by `costs`.

    The costliest come first, in each hand, too. Each goes to the rank with the least load that has room; then the rank
    with most exchanges one for a cheaper one of the rank with least, the second with the second, and again, while the
    largest load falls. Deterministic.
    """
    each, more = divmod(len(costs), ranks)
    hands: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    for item in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        while len(hands[loads[0][1]]) >= each + (more > 0):
            heapq.heappop(loads)
        load, rank = loads[0]
        more -= len(hands[rank]) == each
        hands[rank].append(item)
        heapq.heapreplace(loads, (load + costs[item], rank))
    _exchange(hands, costs)
    return [sorted(hand, key=lambda item: (-costs[item], item)) for hand in hands]


def _exchange(hands: list[list[int]], costs: Sequence[float]) -> None:
    sums = [sum(costs[item] for item in hand) for hand in hands]
    enough = _EVEN * sum(sums) / len(hands)
    for _ in range(_SWEEPS):
        order = sorted(range(len(hands)), key=lambda rank: (-sums[rank], rank))
        before = sums[order[0]]
        for rank, other in zip(order[: len(order) // 2], reversed(order), strict=False):
            if (
                sums[rank] <= enough
                or (pair := best_exchange(hands[rank], hands[other], costs, sums[rank] - sums[other])) is None
            ):
                continue
            given, taken = pair
            hands[rank].remove(given)
            hands[other].remove(taken)
            hands[rank].append(taken)
            hands[other].append(given)
            moved = costs[given] - costs[taken]
            sums[rank], sums[other] = sums[rank] - moved, sums[other] + moved
        if max(sums) >= before:
            return


def best_exchange(
    mine: Sequence[int], others: Sequence[int], costs: Sequence[float], gap: float
) -> tuple[int, int] | None:
    """One of `mine` and one of `others` that bring two loads closest to each other, which are `gap` apart."""
    cheap = sorted(others, key=lambda item: (costs[item], item))
    own = [costs[item] for item in cheap]
    best, found = gap / 2, None
    for item in mine:
        place = bisect.bisect_left(own, costs[item] - gap / 2)
        for near in (place - 1, place):
            if 0 <= near < len(own) and (off := abs(costs[item] - own[near] - gap / 2)) < best:
                best, found = off, (item, cheap[near])
    return found


def cut_shares(
    shares: Sequence[Sequence[Length]],
    *,
    completions_per_device: int | None,
    tokens_per_device: int | None = None,
    padded: bool = True,
) -> list[MicroBatches]:
    """Micro-batches of each rank over its own share: positions in that share, equally many for every rank.

    Exactly one of the two caps is given; a completion above a token budget runs alone. A rank that has fewer
    micro-batches than the others gets micro-batches of one filler, `[None]`.
    """
    if (completions_per_device is None) == (tokens_per_device is None):
        raise ValueError("give completions_per_device or tokens_per_device, one of them")
    cuts: list[MicroBatches] = []
    for share in shares:
        if tokens_per_device is not None:
            (cut,) = partition_by_tokens(share, ranks=1, tokens_per_device=tokens_per_device, padded=padded, soft=True)
        else:
            assert completions_per_device is not None, "one of the two is given"
            (cut,) = partition(
                [length.tokens for length in share], ranks=1, completions_per_device=completions_per_device
            )
        cuts.append(cut)
    most = max((len(cut) for cut in cuts), default=0)
    for cut in cuts:
        cut.extend([None] for _ in range(most - len(cut)))
    return cuts


def layout(costs: Sequence[float], *, ranks: int, rows_per_micro_batch: int | None) -> list[int | None]:
    """The rows in the order in which verl deals them out: one contiguous block per rank, all of one size.

    costs: of each row. rows_per_micro_batch: verl's fixed micro-batch, of which the ranks run one each at a time: those
    of one turn cost about the same, and so do the ranks' sums; None with a token budget, which verl fills itself: the
    sums alone. None in the result is a filler row.
    """
    if rows_per_micro_batch is None:
        hands = deal(costs, ranks)
        size = max(map(len, hands))
        return [row for hand in hands for row in (*hand, *[None] * (size - len(hand)))]
    blocks: list[list[int | None]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    dearest_first = sorted(range(len(costs)), key=lambda row: (-costs[row], row))
    for start in range(0, len(costs), ranks * rows_per_micro_batch):
        turn = dearest_first[start : start + ranks * rows_per_micro_batch]
        parts = [[turn[place] for place in hand] for hand in deal([costs[row] for row in turn], ranks)]
        spent = {rank: sum(costs[row] for row in part) for rank, part in enumerate(parts)}
        least_first = sorted(range(ranks), key=loads.__getitem__)
        for rank, part in zip(least_first, sorted(spent, key=lambda part: -spent[part]), strict=True):
            blocks[rank] += [*parts[part], *[None] * (rows_per_micro_batch - len(parts[part]))]
            loads[rank] += spent[part]
    return [row for block in blocks for row in block]


def fillers(order: Sequence[int | None]) -> int:
    """The number of filler rows that `order` needs."""
    return sum(row is None for row in order)
