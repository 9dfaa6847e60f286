"""Configurations that were converted: one run of each framework, with sizes that all can say, in the words of a target.

The sessions of the frameworks give what is written to the target's own parser, constructor or checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import batchbridge
from batchbridge.contract.reading import Written

PROMPTS = 40_960
_SIZES = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "a rollout in a step": {**_SIZES},
    "two steps of a rollout": {**_SIZES, "steps_per_generation": 8},
    "passes, KL and a seed of 64 bits": {
        **_SIZES,
        "num_iterations": 2,
        "beta": 0.04,
        "seed": 67_280_421_310_721 % 2**32,
    },
    "vLLM on the devices that train": {**_SIZES, "use_vllm": True, "vllm_importance_sampling_correction": False},
    "sequences": {**_SIZES, "importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon_high": 0.28},
    "lengths and a schedule": {
        **_SIZES,
        "max_completion_length": 1024,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 8,
        "max_steps": 80,
    },
}
"""Runs of TRL 1.16.0 on 8 devices."""
SOURCES = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")


def run_of(source: str, name: str) -> batchbridge.Reading | None:
    """A run in the words of a source; None where the source cannot say it."""
    trl = batchbridge.read(RUNS[name], framework="trl", version="1.16.0", world_size=8, dataset_size=PROMPTS)
    assert trl.verdict == "valid", trl.findings
    if source == "trl":
        return trl
    made = batchbridge.convert(trl, source)
    return made.back if made.written is not None else None


def converted(target: str, version: str | None = None) -> dict[str, Written]:
    """What `convert` writes for a target, by source and run."""
    found = {}
    for source in SOURCES:
        for name in RUNS if source != target else ():
            reading = run_of(source, name)
            made = None if reading is None else batchbridge.convert(reading, target, target_version=version)
            if made is not None and made.written is not None:
                found[f"{source}, {name}"] = made.written
    return found
