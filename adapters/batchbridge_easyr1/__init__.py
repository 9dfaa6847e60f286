"""EasyR1 for BatchBridge. Importing this module imports neither EasyR1 nor anything else that takes time."""

from __future__ import annotations

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

TELLS = DetectionFacts(
    programs={r"^verl\.trainer\.main$": 1.0},
    own=dict.fromkeys(("worker.actor", "worker.rollout", "worker.ref", "data.rollout_batch_size"), 0.4)
    | {"worker.rollout.n": 0.2, "worker.actor.global_batch_size": 0.4},
    trainers=(("verl.trainer.ray_trainer", "RayPPOTrainer"),),  # verl's stands in another module
    machine={"trainer.nnodes": "--nodes", "trainer.n_gpus_per_node": "--gpus"},
)
"""The facts by which a configuration is known to be one of EasyR1's."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `easyr1`, which is imported when it is needed."""
    return [AdapterEntry("easyr1", "batchbridge_easyr1.config:EasyR1Adapter", TELLS)]
