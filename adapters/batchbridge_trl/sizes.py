"""TRL's batch arithmetic: the integers that decide it, and what `GRPOConfig` derives from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchbridge_trl.world import KEY as WORLD

MICRO, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
GENERATIONS, PASSES = "num_generations", "num_iterations"
BATCH, STEPS = "generation_batch_size", "steps_per_generation"


class TrlSizes(NamedTuple):
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
    """The setting accelerator_config.gradient_accumulation_kwargs.num_steps, which replaces an accumulation of 1 after
    `steps_per_generation` was derived from it (transformers 5.23.0 Trainer.create_accelerator_and_postprocess)."""

    @property
    def window(self) -> int:
        """Micro-batches per optimizer step, really."""
        if self.rewritten_accumulation is not None and self.accumulation == 1:
            return self.rewritten_accumulation
        return self.accumulation

    @property
    def micro_step(self) -> int:
        """Completions of a micro-batch, over all devices."""
        return self.micro * self.world

    @property
    def batch_alone(self) -> int | None:
        """The rollout's size where generation_batch_size says it, and steps_per_generation does not as well."""
        return self.generation_batch if self.steps_per_generation is None else None

    @property
    def says_both(self) -> bool:
        """Whether two settings that exclude each other say the rollout's size."""
        return self.generation_batch is not None and self.steps_per_generation is not None

    @property
    def steps(self) -> tuple[str, int]:
        """The setting that says a rollout's micro-batches where generation_batch_size does not, and its value."""
        if self.steps_per_generation is None:
            return ACCUMULATION, self.accumulation
        return STEPS, self.steps_per_generation

    @property
    def completions(self) -> int:
        """Completions of a rollout as GRPOConfig computes them, whatever their sign."""
        return self.micro_step * self.steps[1] if self.generation_batch is None else self.generation_batch

    def product(self, key: str, steps: int) -> str:
        """The completions of so many micro-batches, which setting `key` says, in words."""
        return f"{MICRO} {self.micro} x {WORLD} {self.world} x {key} {steps}"

    def resolve(self) -> RolloutSizes | None:
        """The rollout that `GRPOConfig.__post_init__` (trl 0.18.0 to 1.16.0) fills in; None where it raises, or where a
        size is not positive. Before 0.18 a rollout feeds one optimizer step, as it does where neither setting is
        given."""
        if self.says_both or min(self.micro, self.accumulation, self.generations, self.world, self.window) < 1:
            return None
        steps, rest = divmod(self.completions, self.micro_step)
        if rest or steps < 1 or self.completions % self.generations:
            return None
        return RolloutSizes(steps, self.completions, self.completions // self.generations)


class RolloutSizes(NamedTuple):
    """One rollout: `steps_per_generation` micro-batches, `completions` over all devices, `prompts`."""

    steps_per_generation: int
    completions: int
    prompts: int


FIELDS = {
    "micro": MICRO,
    "accumulation": ACCUMULATION,
    "generations": GENERATIONS,
    "world": WORLD,
    "iterations": PASSES,
    "generation_batch": BATCH,
    "steps_per_generation": STEPS,
}
"""Field of `TrlSizes` -> native key."""


def sizes_of(native: Mapping[str, Any]) -> TrlSizes | None:
    """The sizes in `native` settings; None while one of them is missing or no integer."""
    values = {name: native.get(key) for name, key in FIELDS.items()}
    required = FIELDS.keys() - TrlSizes._field_defaults.keys()
    for name, value in values.items():
        if not isinstance(value, int) and (value is not None or name in required | {"iterations"}):
            return None
    steps = gradient_accumulation_kwargs(native).get("num_steps")
    return TrlSizes(**values, rewritten_accumulation=steps if isinstance(steps, int) else None)  # type: ignore[arg-type]
    # checked above


def accelerator_config(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """`accelerator_config` as a mapping; empty where it is unset or a file."""
    config = native.get("accelerator_config")
    return config if isinstance(config, Mapping) else {}


def gradient_accumulation_kwargs(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """`accelerator_config.gradient_accumulation_kwargs` as a mapping."""
    kwargs = accelerator_config(native).get("gradient_accumulation_kwargs")
    return kwargs if isinstance(kwargs, Mapping) else {}
