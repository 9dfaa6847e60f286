"""The memory per device that a configuration's sizes say: tokens of a micro-batch, logits, and what parameters take.

An estimate from below, by counting alone. Left out: activations, buffers of communication, fragmentation, a reference
model, and what a generating engine takes beside the trainer; every parameter is taken to train.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from batchbridge.meaning.spec import Spec, Topology

LEFT_OUT = (
    "activations, buffers of communication, fragmentation, a reference model, and the generating engine's own share; "
    "all parameters are taken to train with Adam"
)
"""The parts of memory that no row counts."""
LOGIT_BYTES = 2
"""Bytes of one logit in bfloat16; losses that are taken in float32 need twice that, and often a copy."""


@dataclass(frozen=True)
class Precision:
    """Bytes per parameter of weights, gradients and optimizer state (Adam's two moments, and a master copy where the
    weights are not float32)."""

    name: str
    weights: int
    gradients: int
    optimizer: int


PRECISIONS = (Precision("float32 weights", 4, 4, 8), Precision("bfloat16 weights, float32 master", 2, 2, 12))
SHARDINGS = {
    "not sharded (DDP)": (False, False, False),
    "optimizer state (ZeRO-1)": (False, False, True),
    "and gradients (ZeRO-2)": (False, True, True),
    "and weights (ZeRO-3, FSDP)": (True, True, True),
}
"""The shardings over the replicas' devices, and what each shares out: weights, gradients, optimizer state."""


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro-batch of a device. completions: None where a token budget cuts it; `completion_tokens` is
    then 0, as prompts take an unknown part of it. prompt, completion: their longest (tokens); prompt None: without a
    limit, and not in `tokens`."""

    tokens: int
    completion_tokens: int
    completions: int | None
    prompt: int | None
    completion: int


def micro_batch(spec: Spec) -> MicroBatch | None:
    """The largest micro-batch of a device; None where its size or the completions' length is open.

    Sequences that several devices share (context parallelism) are divided by these, rounded up.
    """
    cut, prompt, completion = spec.micro_batch, spec.carried.max_prompt_tokens, spec.carried.max_completion_tokens
    longest = spec.carried.longest_tokens
    if completion is None or longest is None:
        return None
    share = spec.topology.context_parallel
    if cut.completions_per_device is not None:
        completions = cut.completions_per_device
        tokens, answers = (-(-completions * each // share) for each in (longest, min(completion, longest)))
        return MicroBatch(tokens, answers, completions, prompt, completion)
    if cut.tokens_per_device is not None:
        budget = cut.tokens_per_device
        budget = max(budget, -(-longest // share)) if cut.cap == "soft" else budget
        return MicroBatch(budget, 0, None, prompt, completion)
    return None


def logit_bytes(micro: MicroBatch, vocabulary: int, tensor_parallel: int = 1) -> int:
    """The least bytes of one copy of a micro-batch's logits, of completion tokens alone, on each device."""
    return micro.completion_tokens * -(-vocabulary // tensor_parallel) * LOGIT_BYTES


def parameter_bytes(parameters: int, topology: Topology) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Bytes of weights, gradients and Adam's state: (what is sharded, bytes per device for each of `PRECISIONS`)."""
    parts = topology.tensor_parallel * topology.pipeline_parallel
    replicas = max(topology.world_size // parts, 1)
    for name, shared in SHARDINGS.items():
        found = []
        for precision in PRECISIONS:
            sizes = (precision.weights, precision.gradients, precision.optimizer)
            each = sum(Fraction(size, replicas if split else 1) for size, split in zip(sizes, shared, strict=True))
            found.append(-int(-parameters * each // parts))
        yield name, tuple(found)
