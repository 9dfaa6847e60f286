"""Attaching to a running `PocketTrainer`: what is refused. `batchbridge check` reads it, too, without torch."""

from __future__ import annotations

from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import Answer, Refusals, own_spec

FREE = ("rollout.", "optimizer_step.", "micro_batch.", "topology.", "advantage.", "order.", "horizon.", "loss.policy.")
"""Groups of fields in which the plan and the weights decide; every other field must be what the trainer does."""


REFUSALS = Refusals()


@REFUSALS.row("verify", "pocketgrpo's own order is never the plan's: observe it, or enforce the plan")
def _verify(request: Request) -> bool:
    return request.mode == "verify"


@REFUSALS.row("other_settings", "what pocketgrpo does, and no plan changes")
def _other_settings(request: Request) -> Answer:
    """The fields that PocketGRPO would not train as the request says, with both values."""
    own = own_spec(request).values
    different = [
        f"{path} = {value!r}, and pocketgrpo does {own.get(path)!r}"
        for path, value in request.spec.values.items()
        if not path.startswith(FREE) and value is not None and value != own.get(path)
    ]
    return "; ".join(different) or False


@REFUSALS.row("step_may_span", "a step of pocketgrpo lies inside one batch")
def _step_may_span(request: Request) -> bool:
    return request.spec.optimizer_step.step_may_span not in ("none", "rollout")


def patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    """See `engine.patch`, which needs torch."""
    from pocketgrpo_batchbridge import engine

    return engine.patch(trainer, request, patches, version)


RUNTIME = Runtime(
    framework="pocketgrpo",
    version=lambda trainer: "1.0",
    refusals=REFUSALS,
    always=("verify",),
    patch=patch,
    training=lambda trainer: is_inside(trainer, "train", of=("pocketgrpo",)),
)
