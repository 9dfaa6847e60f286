"""Every optimizer step's numbers in the metrics of a rollout that verl's `Tracking` logs: console, W&B, TensorBoard.

verl logs once per rollout, under the rollout's number; a rollout of several optimizer steps is one line. The numbers
are fetched from the training worker of rank 0 when the actor was updated, and put beside the actor's own.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from typing import Any

from batchbridge.kit import workers_ray
from batchbridge.kit.patches import Patches
from batchbridge.kit.reporting import StepNumbers, logged, with_patches
from batchbridge_verl import driver


def report(trainer: Any, attachment: Any) -> Any:
    """The attachment of a trainer, V1 or V0, that logs the numbers of its optimizer steps; see `Adapter.report`."""
    patches = Patches()

    def told(native: Any) -> Any:
        def update(batch: Any, *arguments: Any, **options: Any) -> Any:
            result = native(batch, *arguments, **options)
            (steps,) = workers_ray.asked(trainer.actor_rollout_wg.workers[:1], _taken)
            # Source: verl 0.9.1 trainer/ppo/v1/trainer_base.py (a dict to add to), ray_trainer.py (lists, averaged
            # later).
            metrics = options.get("metrics", *arguments[:1])
            if metrics is not None:
                metrics.update(logged(steps))
            else:
                result.meta_info["metrics"].update({name: [value] for name, value in logged(steps).items()})
            return result

        return update

    def tell(owner: Any, name: str) -> None:
        what = "the numbers of steps are added to its metrics"
        patches.set(owner, name, told(getattr(owner, name)), what=what, why="report_to")

    if hasattr(trainer, "_update_actor"):
        tell(trainer, "_update_actor")
    elif getattr(trainer, "actor_rollout_wg", None) is not None:  # before verl 0.7.0 `fit` calls the workers
        tell(trainer.actor_rollout_wg, "update_actor")
    else:
        native_init = trainer.init_workers

        def init_workers() -> None:
            native_init()
            tell(trainer.actor_rollout_wg, "update_actor")

        patches.set(
            trainer, "init_workers", init_workers, what="metrics are added to once there are workers", why="report_to"
        )
    return with_patches(attachment, patches)


def _taken(worker: Any) -> list[StepNumbers]:
    """The numbers of the steps since the last call, taken inside a Ray actor of the worker group."""
    return list(driver._actor_of(worker).batchbridge.taken())
