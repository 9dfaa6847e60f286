"""Hook of `batchbridge run`: the trainer that EasyR1 builds in a Ray actor is wrapped before its workers start.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from types import ModuleType

from batchbridge.kit import follow_before


def trainer(module: ModuleType) -> None:
    """The hook after the import of verl.trainer.ray_trainer, a module that verl's own package has not."""
    follow_before(module.RayPPOTrainer, "init_workers")
