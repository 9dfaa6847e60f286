"""What tests do inside of a worker's process: Ray calls these functions with the worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.snapshots import keep_steps

PROMPTS = 9
"""Of every driver in these tests."""


def on(worker: Any, function: Any, *arguments: Any) -> Any:
    """Calls a function of this module in a worker's process, and returns what it returned."""
    import ray

    return ray.get(worker.__ray_call__.remote(function, *arguments))


def keep(worker: Any, folder: Path) -> None:
    """Keeps gradients and parameters of every optimizer step."""
    keep_steps(worker.replica.optimizer, list(worker.replica.policy.parameters()), folder)


def parameters(worker: Any) -> torch.Tensor:
    """All of them, flat."""
    return torch.cat([one.detach().flatten() for one in worker.replica.policy.parameters()]).clone()


def attributes(worker: Any) -> dict[str, str]:
    """What the replica and its optimizer have for attributes, and how many hooks every parameter has."""
    replica = worker.replica
    hooks = [len(one._backward_hooks or {}) for one in replica.policy.parameters()]
    steps = len(replica.optimizer._optimizer_step_pre_hooks)
    held = {f"optimizer.{name}": str(id(value)) for name, value in vars(replica.optimizer).items()}
    return {**{name: str(id(value)) for name, value in vars(replica).items()}, **held, "hooks": f"{hooks} {steps}"}


def by_sequence(worker: Any) -> None:
    """An average over sequences, where the settings say tokens."""
    _settings(worker.replica, average="sequence")


def unclipped(worker: Any) -> None:
    """A clipping range that is never left."""
    _settings(worker.replica, clip=50.0)


def halved(worker: Any) -> None:
    """Half of the loss."""
    native = worker.replica.loss
    worker.replica.loss = lambda piece: native(piece) / 2


def _settings(replica: Any, **other: Any) -> None:
    native = replica.loss

    def loss(piece: Any) -> Any:
        settings = replica.settings
        replica.settings = {**settings, **other}
        try:
            return native(piece)
        finally:
            replica.settings = settings

    replica.loss = loss


def doubled(worker: Any) -> None:
    """Gradients, after every backward pass."""
    _every_gradient(worker, 2.0)


def erased(worker: Any) -> None:
    """Gradients, after every backward pass."""
    _every_gradient(worker, 0.0)


def _every_gradient(worker: Any, factor: float) -> None:
    def arrive(parameter: Any) -> None:
        parameter.grad *= factor

    for parameter in worker.replica.policy.parameters():
        parameter.register_post_accumulate_grad_hook(arrive)


def first_left_out(worker: Any) -> None:
    """The first micro-batch's backward pass."""
    replica, native, seen = worker.replica, worker.replica.loss, []

    def loss(piece: Any) -> Any:
        seen.append(piece)
        found = native(piece)
        return found if len(seen) > 1 else torch.zeros((), requires_grad=True)

    replica.loss = loss


def compare_nothing(worker: Any) -> None:
    """A worse adapter: weights are measured, and nobody holds them against the plan."""
    worker.replica.batchbridge._recorder.compare = lambda *arguments, **options: None


def own_gradients(worker: Any) -> None:
    """Gradients that are not averaged with the other worker's as they were: it keeps twice its own."""
    replica, native = worker.replica, worker.replica.average_gradients

    def average() -> None:
        native()
        for parameter in replica.policy.parameters():
            parameter.grad *= 2

    replica.average_gradients = average
