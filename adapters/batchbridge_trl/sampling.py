"""Rollout identity: requests to a colocated vLLM engine carry their completions' own seeds (`Plan.sampling_seed`).

TRL's vLLM server takes one set of sampling parameters for a whole rollout: it draws as ever.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from batchbridge.kit.patches import temporarily


@contextlib.contextmanager
def seeded(trainer: Any, seeds: Sequence[int]) -> Iterator[None]:
    """The span in which a rollout is generated: the engine of this rank draws the rows by `seeds`, in their order.
    Collective where engines are split over ranks. Source: trl 0.28.0 to 1.16.0
    generation/vllm_generation.VLLMGeneration.generate."""
    generation = getattr(trainer, "vllm_generation", None)
    if not trainer.use_vllm or generation is None or generation.mode != "colocate":
        yield
        return
    everyone = list(seeds)
    if generation.tensor_parallel_size > 1:
        import torch

        parts: list[Any] = [None] * generation.tensor_parallel_size
        torch.distributed.all_gather_object(parts, list(seeds), group=generation.tp_group)
        everyone = [seed for part in parts for seed in part]
    engine = generation.llm
    native = engine.generate

    def generate(prompts: Sequence[Any], *, sampling_params: Any, **options: Any) -> Any:
        if len(prompts) != len(everyone):  # a later turn, of those rows that called a tool
            return native(prompts, sampling_params=sampling_params, **options)
        each = []
        for seed in everyone:
            own = copy.copy(sampling_params)
            own.seed = seed
            each.append(own)
        return native(prompts, sampling_params=each, **options)

    with temporarily(engine, generate=generate):
        yield
