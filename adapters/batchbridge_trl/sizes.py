"""TRL's batch arithmetic: the integers that decide it, and what `GRPOConfig` derives from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchbridge_trl.world import KEY as WORLD


class Sizes(NamedTuple):
    """The integers as given. Units: `micro` completions per device and micro-batch; `accumulation` micro-batches per
    optimizer step; `generations` completions per prompt; `generation_batch` completions per rollout, over all devices;
    `steps_per_generation` micro-batches per rollout; `iterations` passes; `world` devices."""

    micro: int
    accumulation: int
    generations: int
    world: int
    iterations: int = 1
    generation_batch: int | None = None
    steps_per_generation: int | None = None
    rewritten_accumulation: int | None = None
    """accelerator_config.gradient_accumulation_kwargs.num_steps, which replaces an accumulation of 1 after
    `steps_per_generation` was derived from it (transformers 5.23.0 Trainer.create_accelerator_and_postprocess)."""

    @property
    def window(self) -> int:
        """Micro-batches per optimizer step, really."""
        if self.rewritten_accumulation is not None and self.accumulation == 1:
            return self.rewritten_accumulation
        return self.accumulation

    def resolve(self) -> Rollout | None:
        """What `GRPOConfig.__post_init__` (trl 0.18.0 to 1.16.0) fills in; None where it raises, or where a size is not
        positive. Before 0.18 a rollout feeds one optimizer step, as it does where neither setting is given."""
        if self.generation_batch is not None and self.steps_per_generation is not None:
            return None
        if min(self.micro, self.accumulation, self.generations, self.world, self.window) < 1:
            return None
        per_micro_step = self.micro * self.world
        if self.generation_batch is not None:
            steps, rest = divmod(self.generation_batch, per_micro_step)
            if rest:
                return None
        else:
            steps = self.accumulation if self.steps_per_generation is None else self.steps_per_generation
        completions = per_micro_step * steps
        if steps < 1 or completions % self.generations:
            return None
        return Rollout(steps, completions, completions // self.generations)


class Rollout(NamedTuple):
    """One rollout: `steps_per_generation` micro-batches, `completions` over all devices, `prompts`."""

    steps_per_generation: int
    completions: int
    prompts: int


FIELDS = {
    "micro": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "generations": "num_generations",
    "world": WORLD,
    "iterations": "num_iterations",
    "generation_batch": "generation_batch_size",
    "steps_per_generation": "steps_per_generation",
}
"""Field of `Sizes` -> native key."""


def sizes_of(native: Mapping[str, Any]) -> Sizes | None:
    """The sizes in `native` settings; None while one of them is missing or no integer."""
    values = {name: native.get(key) for name, key in FIELDS.items()}
    required = FIELDS.keys() - Sizes._field_defaults.keys()
    for name, value in values.items():
        if not isinstance(value, int) and (value is not None or name in required | {"iterations"}):
            return None
    steps = gradient_accumulation_kwargs(native).get("num_steps")
    return Sizes(**values, rewritten_accumulation=steps if isinstance(steps, int) else None)  # type: ignore[arg-type]
    # checked above


def accelerator_config(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """`accelerator_config` as a mapping; empty where it is unset or a file."""
    config = native.get("accelerator_config")
    return config if isinstance(config, Mapping) else {}


def gradient_accumulation_kwargs(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """`accelerator_config.gradient_accumulation_kwargs` as a mapping."""
    kwargs = accelerator_config(native).get("gradient_accumulation_kwargs")
    return kwargs if isinstance(kwargs, Mapping) else {}
