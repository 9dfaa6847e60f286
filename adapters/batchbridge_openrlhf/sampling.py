"""Rollout identity: every request to a vLLM engine carries its completion's own seed (`Plan.sampling_seed`).

The driver gives each prompt's request the seed of its first sample; in the engine's process each of the group's samples
takes the next one. Source: openrlhf 0.10.4 to 0.11.2 samples_generator._dispatch_prompts_to_vllm,
vllm_engine.RolloutRayActor.generate_responses.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.patches import Patches


class SeededEngines:
    """A stand-in for a generator's engines while one rollout is dispatched, prompt by prompt in `seeds`' order."""

    def __init__(self, engines: Sequence[Any], seeds: Sequence[int]) -> None:
        self._seeds = iter(seeds)
        self._engines = [_Seeded(engine, self._seeds) for engine in engines]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._engines)

    def __getitem__(self, index: int) -> Any:
        return self._engines[index]

    def __len__(self) -> int:
        return len(self._engines)


class _Seeded:
    def __init__(self, engine: Any, seeds: Iterator[int]) -> None:
        self._engine, self._seeds = engine, seeds
        self.generate_responses = self  # what `.remote` is asked of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def remote(self, *, sampling_params: Any, **options: Any) -> Any:
        """The engine's own call, with the next prompt's seed."""
        sampling_params.seed = next(self._seeds)  # Ray sends what it is now
        return self._engine.generate_responses.remote(sampling_params=sampling_params, **options)


def reach(engines: Sequence[Any]) -> None:
    """Patches every engine. Raises `CannotAttach` where one does not answer."""
    import ray

    try:
        answers = ray.get([engine.__ray_call__.remote(in_engine) for engine in engines])
    except (ImportError, ray.exceptions.RayError) as error:
        raise CannotAttach({"sampling_seeds": f"an engine was not reached: {error}"}) from error
    if answers != [True] * len(engines):
        raise CannotAttach(
            {"sampling_seeds": f"{answers.count(True)} of {len(engines)} engines take a seed per sample"}
        )


def release(engines: Sequence[Any]) -> None:
    """Undoes `reach` in every engine that still answers."""
    import ray

    for engine in engines:
        with contextlib.suppress(ray.exceptions.RayActorError):  # its patch died with it
            ray.get([engine.__ray_call__.remote(out_of_engine)])


def in_engine(engine: Any) -> bool:
    """Patches one engine, in its own process; False where it asks for samples in another way."""
    native = getattr(getattr(engine, "executor", None), "execute", None)
    if native is None:
        return False
    if getattr(native, "counts_samples", False):
        return True

    def execute(*, sampling_params: Any, **options: Any) -> Any:
        if sampling_params.seed is None:
            return native(sampling_params=sampling_params, **options)
        mine = copy.copy(sampling_params)
        sampling_params.seed += 1  # the request's own object: its next sample asks with the next seed
        return native(sampling_params=mine, **options)

    execute.counts_samples = True  # type: ignore[attr-defined]
    patches = engine.batchbridge_patches = Patches()
    patches.set(engine.executor, "execute", execute, what="a seed per sample", why="sampling of the plan")
    return True


def out_of_engine(engine: Any) -> None:
    """Undoes `in_engine`; an engine without it is left alone."""
    patches = vars(engine).pop("batchbridge_patches", None)
    if patches is not None:
        patches.undo()
