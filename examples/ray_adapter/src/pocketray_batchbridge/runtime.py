"""Attaching to a PocketRay driver: what is refused, and what is patched in the driver and in its workers."""

from __future__ import annotations

from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import Answer, Refusals, crosses_rollouts, own_spec
from batchbridge.kit.workers import orders_of
from batchbridge.kit.workers_ray import install_everywhere
from pocketray_batchbridge.driver import Labelled, Planned

BROUGHT = ("rollout.", "optimizer_step.", "micro_batch.", "topology.", "advantage.", "order.", "horizon.")
"""Groups of fields in which the plan decides; every other field must be what the driver and its workers do."""


REFUSALS = Refusals()


@REFUSALS.row("other_settings", "what pocketray does, and no plan changes")
def _other_settings(request: Request) -> Answer:
    """The fields that PocketRay would not train as the request says, with both values."""
    own = own_spec(request).values
    different = [
        f"{path} = {value!r}, and pocketray does {own.get(path)!r}"
        for path, value in request.spec.values.items()
        if not path.startswith(BROUGHT) and value is not None and value != own.get(path)
    ]
    return "; ".join(different) or False


@REFUSALS.row("step_crosses_rollouts", "pocketray forgets a rollout before the next")
def _step_crosses_rollouts(request: Request) -> bool:
    return crosses_rollouts(request)


def patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    """Every worker first: each answers, and has its loss probed where the plan should be followed. Then the driver."""
    from pocketray_batchbridge import engine  # it imports torch, and the table above is read without

    orders, enforces = orders_of(request, version), request.mode == "enforce"
    probe = engine.probe if enforces and not request.again else None
    receipts = install_everywhere(trainer.workers, orders, engine.install, probe)
    patches.made(
        "workers",
        lambda: _leave(trainer.workers),
        what=f"orders in {len(receipts)} workers",
        why="each step is measured there, and held against the plan before the update",
    )
    if not enforces:
        parts = Labelled(trainer).parts
        patches.set(trainer, "parts", parts, what="labelled", why="the ledger says what each step trained")
        return Patched()
    planned = Planned(trainer, request, orders)
    planned.receipts = receipts
    for name, what in (
        ("rollouts", "as many as planned"),
        ("choose", "the planned prompts"),
        ("advantages", "the specification's own rule"),
        ("parts", "the planned optimizer steps, placed by length"),
    ):
        patches.set(trainer, name, getattr(planned, name), what=what, why="the plan decides it")
    return Patched()


def _leave(workers: list[Any]) -> None:
    from pocketray_batchbridge import engine

    install_everywhere(workers, None, engine.install)


RUNTIME = Runtime(
    framework="pocketray",
    version=lambda trainer: "1.0",
    refusals=REFUSALS,
    patch=patch,
    training=lambda trainer: is_inside(trainer, "train", of=("pocketray",)),
)
