"""The unwrapped steps of a framework that trains rollout by rollout: whole batches of an epoch's order, dealt out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count, islice, repeat

from batchbridge.contract.reading import NativeRow, NativeStep

PromptAndSample = tuple[int, int]
"""Prompt and sample."""
DealToSteps = Callable[[Sequence[PromptAndSample]], Iterable[Sequence[tuple[int, Sequence[PromptAndSample]]]]]
"""A rollout's completions as optimizer steps, each its micro-batches with their ranks."""


def rollouts_of(orders: Iterable[Sequence[int]], prompts: int, size: int, most: int | None) -> Iterator[Sequence[int]]:
    """The prompts of each rollout, at `most` so many (None: without end): whole batches of each epoch's order of `size`
    prompts."""
    if size < prompts:
        return iter(())
    starts = range(0, size - prompts + 1, prompts)
    return islice((order[start : start + prompts] for order in orders for start in starts), most)


def shuffled_orders(
    size: int, seed: int | None, *, draws_before: int = 0, draws_after: int = 0
) -> Iterator[Sequence[int]]:
    """The order of each epoch by one of torch's generators, without end; seed: None: as in the dataset. draws_before,
    draws_after: permutations of an epoch that the loader draws and does not use."""
    if seed is None:
        yield from repeat(range(size))
        return
    from batchbridge.kit.torch_random import TorchGenerator  # a check of settings asks for no order

    generator = TorchGenerator(seed)
    while True:
        for _ in range(draws_before):
            generator.permutation(size)
        yield generator.permutation(size)
        for _ in range(draws_after):
            generator.permutation(size)


def shuffled_rollouts(
    size: int, prompts: int, seed: int | None, *, draws_before: int = 0, draws_after: int = 0
) -> Iterator[Sequence[int]]:
    """The prompts of each rollout, without end; see `shuffled_orders` and `rollouts_of`."""
    orders = shuffled_orders(size, seed, draws_before=draws_before, draws_after=draws_after)
    return rollouts_of(orders, prompts, size, None)


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
