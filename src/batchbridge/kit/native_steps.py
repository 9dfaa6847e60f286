"""The unwrapped steps of a framework that trains rollout by rollout: whole batches of an epoch's order, dealt out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count, islice

from batchbridge.contract.reading import NativeRow, NativeStep

PromptAndSample = tuple[int, int]
"""Prompt and sample."""
DealToSteps = Callable[[Sequence[PromptAndSample]], Iterable[Sequence[tuple[int, Sequence[PromptAndSample]]]]]
"""A rollout's completions as optimizer steps, each its micro-batches with their ranks."""


def rollouts_of(orders: Iterable[Sequence[int]], prompts: int, size: int, most: int) -> Iterator[Sequence[int]]:
    """The prompts of each rollout, at `most` so many: whole batches of each epoch's order of `size` prompts."""
    if size < prompts:
        return iter(())
    starts = range(0, size - prompts + 1, prompts)
    return islice((order[start : start + prompts] for order in orders for start in starts), most)


def dealt_steps(
    rollouts: Iterable[Sequence[int]],
    tokens: Mapping[PromptAndSample, int],
    *,
    group: int,
    passes: int,
    deal: DealToSteps,
    weight: Callable[[int, int, list[int]], Fraction | None],
) -> Iterator[NativeStep]:
    """The steps of `rollouts`. tokens: response tokens of each completion. weight: of a token, by its completion's
    length, the step's tokens and the lengths in its micro-batch."""
    index = count()
    for rollout, prompts in enumerate(rollouts):
        completions = [(prompt, sample) for prompt in prompts for sample in range(group)]
        for pass_index in range(passes):
            for parts in deal(completions):
                total = sum(tokens[one] for _, part in parts for one in part)
                places: dict[int, int] = {}
                rows = []
                for rank, part in parts:
                    places[rank] = place = places.get(rank, -1) + 1
                    lengths = [tokens[one] for one in part]
                    rows += [
                        NativeRow(
                            rollout=rollout,
                            pass_index=pass_index,
                            prompt=prompt,
                            sample=sample,
                            rank=rank,
                            micro_batch=place,
                            weight=weight(length, total, lengths),
                        )
                        for (prompt, sample), length in zip(part, lengths, strict=True)
                    ]
                yield NativeStep(index=next(index), rows=tuple(rows))
