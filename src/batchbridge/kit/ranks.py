"""The share of a rollout that ranks hold, and how they run it together. Pure; knows no framework.

For trainers whose ranks hold their completions before a step is cut: who holds a completion is given, what is decided
is in which micro-batches each rank runs its own, and that all ranks run equally many, because they communicate inside.
"""

from __future__ import annotations

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


def deal(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Each rank's completions of one step, by number: equally many, give or take one, and balanced by `costs`."""
    hands = partition(costs, ranks=ranks, completions_per_device=max(len(costs), 1))
    return [[item for row in hand for item in row if item is not None] for hand in hands]


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


def layout(costs: Sequence[int], *, ranks: int, rows_per_micro_batch: int | None) -> list[int | None]:
    """The rows in the order in which verl deals them out: one contiguous block per rank, all of one size.

    costs: tokens of each row. rows_per_micro_batch: verl's fixed micro-batch; None with a token budget, which verl
    fills itself. None in the result is a filler row.
    """
    micro = rows_per_micro_batch or 1
    order: list[int | None] = []
    for hand in partition(costs, ranks=ranks, completions_per_device=micro):
        for rows in hand:
            order += [*rows, *[None] * (micro - len(rows))]
    return order


def fillers(order: Sequence[int | None]) -> int:
    """The number of filler rows that `order` needs."""
    return sum(row is None for row in order)
