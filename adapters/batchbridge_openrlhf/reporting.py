"""Every optimizer step's numbers in what OpenRLHF's W&B and TensorBoard loggers get after a rollout.

OpenRLHF logs at its own logging steps (rollouts), in the process of the `PPOTrainer`; the numbers of all optimizer
steps since the last time are fetched from the training process of rank 0.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit import workers_ray
from batchbridge.kit.patches import Patches
from batchbridge.kit.reporting import StepNumbers, logged, with_patches


def report(trainer: Any, attachment: Any) -> Any:
    """The attachment of a `PPOTrainer` that logs the numbers of its optimizer steps; see `Adapter.report`."""
    patches = Patches()

    def save(global_step: int, logs_dict: Mapping[str, Any] | None = None, client_states: Any = None) -> Any:
        logs = dict(logs_dict or {})
        if global_step % trainer.args.logger.logging_steps == 0:  # else it logs nothing, and nothing should be lost
            (steps,) = workers_ray.asked(trainer.actor_model_group._actor_handlers[:1], _taken)
            logs |= logged(steps)
        return native(global_step, logs, client_states)

    what = "the numbers of steps are added to its logs"
    native = patches.set(trainer, "save_logs_and_checkpoints", save, what=what, why="report_to")
    return with_patches(attachment, patches)


def _taken(worker: Any) -> list[StepNumbers]:
    """The numbers of the steps since the last call, taken inside a `PolicyModelActor`."""
    return list(worker.trainer.batchbridge_engine.taken())
