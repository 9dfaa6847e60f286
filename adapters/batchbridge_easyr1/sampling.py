"""Rollout identity: every request to EasyR1's vLLM carries its completion's own seed (`Plan.sampling_seed`).

Prompts travel to the training workers with the seed of their first sample; there each prompt's request for a group
becomes one request per sample, so that nothing depends on how an engine numbers a group.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.identified_rows import SEED


class SeededLoader:
    """A loader of generation batches that keeps the seeds of the batch that it gave last, until they are taken."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._seeds = loader, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self._seeds = batch[SEED]
            yield batch

    def take(self, prompts: int) -> Any:
        """A column for the generation that follows, of so many `prompts`; None for any other: a validation's. Raises
        `CannotAttach` where the batch that was given is not what is generated."""
        seeds, self._seeds = self._seeds, None
        if seeds is not None and len(seeds) != prompts:
            raise CannotAttach(
                {"sampling_seeds": f"{prompts} prompts are generated, not the {len(seeds)} of the batch"}
            )
        return seeds


def seeded(rollout: Any) -> Callable[..., Any]:
    """A stand-in for `rollout.generate_sequences`: prompts that have seeds are drawn by them.

    Source: EasyR1 0.3.2 to 0.3.3.dev0 vLLMRollout.generate_sequences, which takes an engine's answers in their order.
    """
    native = rollout.generate_sequences

    def generate_sequences(prompts: Any) -> Any:
        seeds = prompts.non_tensor_batch.pop(SEED, None)
        if seeds is None:
            return native(prompts=prompts)
        engine = rollout.inference_engine
        engine.generate = _one_by_one(engine.generate, [int(seed) for seed in seeds])
        try:
            return native(prompts=prompts)
        finally:
            del engine.generate

    return generate_sequences


def _one_by_one(native: Callable[..., Any], seeds: Sequence[int]) -> Callable[..., Any]:
    """An engine's `generate` that asks for each sample of each prompt with its own seed."""

    def generate(*, prompts: Sequence[Any], sampling_params: Any, **options: Any) -> Any:
        group, each = int(sampling_params.n), []
        for seed in (first + sample for first in seeds for sample in range(group)):
            own = copy.copy(sampling_params)
            own.n, own.seed = 1, seed
            each.append(own)
        if options.get("lora_request") is not None:
            options["lora_request"] = _repeated(options["lora_request"], group)
        return native(prompts=_repeated(prompts, group), sampling_params=each, **options)

    return generate


def _repeated(items: Sequence[Any], times: int) -> list[Any]:
    return [item for item in items for _ in range(times)]
