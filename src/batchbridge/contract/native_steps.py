"""The unwrapped steps of the plainest framework: consecutive completions, in consecutive shares of the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from batchbridge.contract.reading import NativeRow, NativeStep
from batchbridge.errors import PlanError
from batchbridge.meaning.lengths import with_one_length
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import Row, token_weights


def consecutive_steps(
    spec: Spec, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
) -> Iterator[NativeStep]:
    """Steps of a framework that trains its completions as they come; see `Adapter.native_steps`.

    Each device gets an equal, consecutive share of a step (where it does not divide, the first ones one completion
    more), and cuts it into consecutive micro-batches of `micro_batch.completions_per_device`; without that number a
    share is one micro-batch. Raises `ValueError` where prompts are shuffled: a framework's own order is not the plan's.
    """
    if spec.order.prompt_shuffle != "none":
        raise ValueError("prompts are shuffled, and how this framework shuffles is not said")
    try:
        plan = Plan(with_one_length(spec, dataset_size), dataset_size)
    except PlanError as error:
        raise ValueError(error.reason) from error
    replicas = int(spec.topology.data_parallel_size)
    for step in plan.steps():
        rows = [Row(tokens=response_tokens[member.prompt, member.sample]) for member in step.members]
        weights = token_weights(spec.loss.policy, rows)
        shares = [len(rows) // replicas + (rank < len(rows) % replicas) for rank in range(replicas)]
        places = [(rank, place) for rank, share in enumerate(shares) for place in range(share)]
        size = spec.micro_batch.completions_per_device or len(rows) or 1
        yield NativeStep(
            index=step.index,
            rows=tuple(
                NativeRow(
                    rollout=member.rollout,
                    pass_index=member.pass_index,
                    prompt=member.prompt,
                    sample=member.sample,
                    rank=rank,
                    micro_batch=place // size,
                    weight=weight,
                )
                for member, (rank, place), weight in zip(step.members, places, weights, strict=True)
            ),
        )
