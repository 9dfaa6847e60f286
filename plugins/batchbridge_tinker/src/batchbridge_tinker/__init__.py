"""Tinker as a target of `batchbridge convert`: a training loop for its SDK."""

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

TINKER_TELLS = DetectionFacts(
    own={"optimizer_step": 0.4, "carried": 0.3, "horizon": 0.3},
    shared={"lora_rank": 0.1, "base_model": 0.1},  # ms-swift and Open-Instruct have a `lora_rank`, too
    classes=(("batchbridge_tinker.", "TinkerRun"),),
)
"""The facts by which the settings of a loop are known."""


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it does not import Tinker's SDK."""
    return [AdapterEntry("tinker", "batchbridge_tinker.config:TinkerAdapter", TINKER_TELLS)]
