"""The DeepSpeed that each OpenRLHF release requires, and what it does with the gradients of dynamic batches.

With dynamic batches OpenRLHF calls `backward` once per micro-batch and `step` once per optimizer step, under
gradient_accumulation_steps 1: DeepSpeed takes every `backward` for the last one of a step. Source: openrlhf 0.8.6 to
0.11.2 ActorPPOTrainer.training_step, get_ds_train_config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from batchbridge_openrlhf.settings import holds

REQUIRED: Mapping[str, str] = {
    "0.8.0": "0.16.7",
    "0.8.1": "0.16.8",
    "0.8.2": "0.16.9",
    "0.8.3": "0.17.0",
    "0.8.4": "0.17.1",
    "0.8.6": "0.17.2",
    "0.8.8": "0.17.3",
    "0.8.9": "0.17.4",
    "0.8.10": "0.17.5",
    "0.8.11": "0.17.6",
    "0.9.0": "0.18.1",
    "0.9.1": "0.18.3",
    "0.9.3": "0.18.5",
    "0.9.4": "0.18.6",
    "0.9.5": "0.18.7",
    "0.9.6": "0.18.8",
    "0.9.10": "0.18.9",
    "0.10.4": "0.19.1",
    "0.11.0": "0.19.5",
    "0.11.2": "0.19.6",
}
"""OpenRLHF's release to the DeepSpeed that it and the following ones require. Source: their requirements.txt, `==`."""

AppliedNormaliser = Literal["all", "last", "mixed", "raises"]
"""The gradients that an update applies: of all micro-batches of its step; of the last one; of all but the first, and
those of earlier steps again; or none, since the second `backward` of a step raises TypeError."""
KEPT: tuple[tuple[bool, str, AppliedNormaliser], ...] = (
    # the optimizer's state on the CPU, DeepSpeed's versions, what is applied
    (False, "<0.17.6", "all"),
    (False, ">=0.17.6,<0.18.3", "raises"),
    (False, ">=0.18.3", "last"),
    (True, "<0.19.0", "last"),
    (True, ">=0.19.0", "mixed"),
)
"""The treatment of gradients under ZeRO-1 and 2, by where the optimizer's state lies and DeepSpeed's version. Source:
deepspeed 0.16.7 to 0.19.6 runtime/zero/stage_1_and_2.py, independent_gradient_partition_epilogue and
copy_grads_in_partition; measured by tests/adapters/openrlhf/record_deepspeed.py, on CPU."""


def required(version: str) -> str:
    """The DeepSpeed that an OpenRLHF release requires."""
    return [deepspeed for first, deepspeed in REQUIRED.items() if holds(f">={first}", version)][-1]


def applied(deepspeed: str, *, stage: int, offload: bool, float32_accumulation: bool) -> AppliedNormaliser | None:
    """The treatment of a step's gradients where every `backward` counts as its last; None: not known.

    stage: of ZeRO. offload: the optimizer's state lies on the CPU. float32_accumulation: bf16 gradients are added up in
    float32, for which ZeRO-1 has an optimizer class of its own that changes from version to version.
    """
    if stage not in (1, 2):
        return "all"
    if stage == 1 and float32_accumulation and not offload:
        return None
    return next(outcome for on_cpu, versions, outcome in KEPT if on_cpu == offload and holds(versions, deepspeed))
